"""Damage what peers send, and look at how it is refused.

    python -m tests.fuzz.fuzz --minutes 60 [--seed 0]

An example that is refused in another way than its target allows, or takes longer than SLOW_SECONDS, is printed with the seed
that makes it again.
"""

import argparse
import time
from collections.abc import Iterator
from random import Random

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import Target, seeded, targets

BLOCK = 200
"""Examples of one seed."""
SLOW_SECONDS = 2.0
"""Of processor time, for an example of at most some hundred kilobytes."""


def examples(target: Target, seed: int) -> Iterator[bytes]:
    random = seeded(target, seed)
    for _ in range(BLOCK):
        yield mutated(random.choice(target.corpus), random.choice(target.corpus), random)


def problem(target: Target, data: bytes) -> str | None:
    """What is wrong with how the target reads these bytes."""
    begun = time.process_time()
    try:
        target.read(data)
    except target.refusals:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    seconds = time.process_time() - begun
    return f"took {seconds:.1f} s" if seconds > SLOW_SECONDS else None


def run(minutes: float, first_seed: int) -> int:
    """Problems found within so many minutes."""
    end, seed, num_examples, num_problems = time.monotonic() + 60 * minutes, first_seed, 0, 0
    while time.monotonic() < end:
        for target in targets():
            for number, data in enumerate(examples(target, seed)):
                num_examples += 1
                if (why := problem(target, data)) is not None:
                    num_problems += 1
                    print(f"{target.name}, seed {seed}, example {number}: {why}\n  {data[:200]!r}")
        seed += 1
    print(f"{num_examples} examples of {len(targets())} decoders, seeds {first_seed} to {seed - 1}: {num_problems} problems")
    return num_problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=Random().randrange(1 << 32), help="of the first block; another one each time by default"
    )
    options = parser.parse_args()
    raise SystemExit(run(options.minutes, options.seed) > 0)


if __name__ == "__main__":
    main()
