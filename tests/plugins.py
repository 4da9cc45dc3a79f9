"""The example package, as pip would have installed it: its module, and what `importlib.metadata` reads."""

import tomllib
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "examples" / "plugin"


def install(folder: Path, *, version: str | None = None) -> Path:
    """Into `folder`, which is to be on the path of modules. `version`: another than its own."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    version = version or project["version"]
    record = folder / f"{project['name'].replace('-', '_')}-{version}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (record / "entry_points.txt").write_text("\n".join(groups))
    module = SOURCE / "adloco_example.py"
    (folder / module.name).write_text(module.read_text())
    return folder
