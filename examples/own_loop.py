"""Your own training loop as a peer: a small network learns the sine of its input, together with all other peers of the run.

    python examples/own_loop.py first --wait-for second    # prints the join link
    python examples/own_loop.py second --link LINK         # in another terminal

Each peer draws its own data. The run has 20 rounds of 10 steps; the last line names the model that all peers have then. It is
over within seconds: without `--wait-for` the first peer has trained all of it alone before another one is there.
"""

import argparse
import hashlib
import logging
from pathlib import Path

import torch

import adloco_p2p

RUN = {
    "name": "sine",
    "work.rounds": 20,
    "work.inner_steps": 10,
    "batch.initial_batch": 64,
    "admission.probation_rounds": 0,
}
MACHINE = {"num_threads": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--link", help="join the run that another peer has started")
    parser.add_argument("--wait-for", action="append", default=[], metavar="DIR", help="working directory of another peer here")
    parser.add_argument("--listen", default="/ip4/0.0.0.0/tcp/0")
    parser.add_argument("--rounds", type=int, default=RUN["work.rounds"])
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("adloco_p2p").setLevel(logging.INFO)  # the join link, before others are waited for

    torch.manual_seed(0)  # founders begin with equal parameters; all other peers fetch the run's
    net = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    held_out = torch.linspace(-3, 3, 101).unsqueeze(1)

    def loss_on(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(net(rows), torch.sin(rows))

    def reset() -> None:
        optimizer.state.clear()  # its moments belong to parameters that were given up

    founders = [adloco_p2p.peer_id(folder) for folder in arguments.wait_for]
    run = {**RUN, "work.rounds": arguments.rounds, "founders": founders}
    with adloco_p2p.Swarm(
        arguments.link or run,
        workdir=arguments.workdir,
        parameters=net.parameters(),
        name="sine",
        evaluate=lambda: loss_on(held_out).item(),
        on_reset=reset,
        peer={**MACHINE, "host_maddrs": [arguments.listen]},
    ) as swarm:
        torch.seed()  # every peer its own data
        is_going_on = True
        while is_going_on:
            rows = 6 * torch.rand(32, 1) - 3
            loss = loss_on(rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            is_going_on = swarm.step(samples=len(rows), loss=loss)

    values = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    print(f"finished: {swarm.is_finished}, held-out loss {loss_on(held_out).item():.4f}, model {digest}")


if __name__ == "__main__":
    main()
