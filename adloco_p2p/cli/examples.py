"""The examples of the help pages: where to begin, and at least one command of every verb. The tests parse each line."""

from adloco_p2p.core.model.commands import COMMANDS

FIRST = (
    "adloco-peer swarm --peers 2 --rounds 20 --workdir runs/first    a whole run on this machine",
    "adloco-peer join --initial-peers LINK --workdir runs/theirs     take part in a run of others",
    "adloco-peer start --workdir runs/mine                           begin a run of your own",
    "adloco-peer doctor                                              can this machine take part?",
)

EXAMPLES: dict[str, tuple[str, ...]] = {
    "start": (
        "adloco-peer start --workdir runs/mine",
        "adloco-peer start my-run.yaml --workdir runs/mine --host-maddrs /ip4/0.0.0.0/tcp/31337",
        "adloco-peer start --workdir runs/try --offline --rounds 5 --set data.source=text 'data.path=books/*.txt'",
    ),
    "join": (
        "adloco-peer join --initial-peers LINK --workdir runs/theirs",
        "adloco-peer join --initial-peers LINK --workdir runs/theirs --peer-set upload_bytes_per_second=1000000",
    ),
    "keep": ("adloco-peer keep --initial-peers LINK --workdir runs/kept",),
    "swarm": (
        "adloco-peer swarm --peers 2 --rounds 20 --workdir runs/first",
        "adloco-peer swarm --peers 4 --workdir runs/first --export runs/first/model",
    ),
    "bootstrap": ("adloco-peer bootstrap --workdir runs/bootstrap --host-maddrs /ip4/0.0.0.0/tcp/31337",),
    "doctor": ("adloco-peer doctor", "adloco-peer doctor --initial-peers LINK"),
    "status": ("adloco-peer status --workdir runs/mine", "adloco-peer status --workdir runs/mine --json"),
    "watch": ("adloco-peer watch --workdir runs/mine",),
    "bandwidth": ("adloco-peer bandwidth --workdir runs/mine", "adloco-peer bandwidth --workdir runs/mine --up 2M --down 0"),
    **{name: (f"adloco-peer {name} --workdir runs/mine {command.example}".rstrip(),) for name, command in COMMANDS.items()},
    "invite": ("adloco-peer invite --workdir runs/mine --seats 50", "adloco-peer invite --workdir runs/mine --each 5"),
    "members": ("adloco-peer members --workdir runs/mine",),
    "ban": ("adloco-peer ban PEER --workdir runs/mine --reason 'sends noise'",),
    "unban": ("adloco-peer unban PEER --workdir runs/mine",),
    "signers": ("adloco-peer signers --workdir runs/mine", "adloco-peer signers --workdir runs/mine --add PEER"),
    "command": (
        "adloco-peer command pause --workdir runs/mine --reason 'new text tonight'",
        "adloco-peer command set --workdir runs/mine --rounds 200",
    ),
    "command stop": (
        "adloco-peer command stop --workdir runs/mine",
        "adloco-peer command stop --workdir runs/mine --after-round 300",
    ),
    "command pause": ("adloco-peer command pause --workdir runs/mine --reason 'new text tonight'",),
    "command resume": ("adloco-peer command resume --workdir runs/mine",),
    "command set": (
        "adloco-peer command set --workdir runs/mine --rounds 200",
        "adloco-peer command set --workdir runs/mine --learning-rate-factor 0.5 --from-round 120",
    ),
    "export": (
        "adloco-peer export --workdir runs/mine --output model",
        "adloco-peer export --workdir runs/mine --output model --dtype bfloat16",
    ),
    "import": ("adloco-peer import my-run.yaml --weights weights.pt --output pretrained",),
    "evaluate": (
        "adloco-peer evaluate --workdir runs/mine",
        "adloco-peer evaluate --workdir runs/mine --data other.txt --json",
    ),
    "generate": ("adloco-peer generate --workdir runs/mine --prompt 'Once upon a time'",),
    "report": (
        "adloco-peer report --workdir runs/mine --output report",
        "adloco-peer report --workdir runs/mine --output report --html",
        "adloco-peer report runs/a-1 runs/a-2 runs/b-1 --labels adloco adloco diloco --output report",
    ),
    "dashboard": (
        "adloco-peer dashboard --workdir runs/mine",
        "adloco-peer dashboard runs/a runs/b --labels adloco diloco",
        "adloco-peer dashboard --initial-peers LINK --port 8080",
    ),
    "leaderboard": ("adloco-peer leaderboard --workdir runs/mine",),
    "replay": ("adloco-peer replay --workdir runs/mine --speed 10",),
    "ledger": ("adloco-peer ledger --workdir runs/mine", "adloco-peer ledger verify --workdir runs/mine"),
    "explain": ("adloco-peer explain 12 --workdir runs/mine",),
    "plan": (
        "adloco-peer plan --samples 1000000 --peers 8 --mbit 20",
        "adloco-peer plan my-run.yaml --samples 1000000 --workdir runs/mine",
    ),
    "config": ("adloco-peer config show my-run.yaml", "adloco-peer config show --peer"),
    "config show": (
        "adloco-peer config show",
        "adloco-peer config show my-run.yaml --set work.rounds=16",
        "adloco-peer config show --peer --peer-config peers/laptop.yaml",
    ),
    "simulate": (
        "adloco-peer simulate --everyday --seeds 1-20",
        "adloco-peer simulate --peers 20 --churn 0.1 --loss 0.05 --rounds 10",
    ),
    "explain-error": ("adloco-peer explain-error E302",),
    "bundle": ("adloco-peer bundle --workdir runs/mine",),
    "version": ("adloco-peer version",),
    "completion": (
        'eval "$(adloco-peer completion bash)"',
        'eval "$(adloco-peer completion zsh)"',
        "adloco-peer completion fish > ~/.config/fish/completions/adloco-peer.fish",
    ),
}
