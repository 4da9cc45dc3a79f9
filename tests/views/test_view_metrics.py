"""The metrics: named by the conventions, declared once, and shown by every view and by the dashboard."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from adloco_p2p.core.model.telemetry import Gpu, Machine, Stamped
from adloco_p2p.views import metrics, node_status, page, table_rows, traffic
from adloco_p2p.views.metrics import Measure, measures
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply
from adloco_p2p.web.exposition import exposition
from tests.views.golden import DASHBOARD, dashboard, screen
from tests.views.synthetic import THIS, Made, events, replay

GRAFANA = Path(__file__).parents[2] / "peers" / "grafana"
UNITS = ("_per_second", "_seconds", "_bytes", "_samples", "_nats", "_ratio", "_info", "_tokens", "_celsius", "_watts")
NUMBERS = {
    *("adloco_round", "adloco_run_rounds", "adloco_run_finished", "adloco_instances", "adloco_instance_hosts"),
    *("adloco_peers", "adloco_warnings", "adloco_events", "adloco_saved_round", "adloco_task_score", "adloco_look_score"),
}
"""Counts of things have no unit."""
TROUBLES = ("average_failed", "out_of_memory", "suspected", "warning")
NO_LABELS = Measure(name="", unit="", meaning="", words="", label_names=(), samples={})
EVERYTHING = '{__name__=~"adloco_.+",job="$job"}'
FUNCTIONS = {"rate", "increase", "changes", "max", "sum", "by", "on", "and"}


def named(made: list[Measure]) -> dict[str, Measure]:
    found = {measure.name: measure for measure in made}
    assert len(found) == len(made), "a name twice"
    return found


def with_traffic() -> list[Made]:
    made = events(12)
    traffic = {"averaging": 700, "gossip": 30, "state": 4000}
    counted = [
        {
            "event": "traffic",
            "time": event["time"],
            "round": event["round"],
            "sent": traffic,
            "received": dict.fromkeys(traffic, 7),
        }
        for event in made
        if event["event"] == "round"
    ]
    return [*made, *counted]


def test_names_end_with_their_unit_and_those_of_counters_with_total() -> None:
    for measure in measures(replay(events())):
        assert re.fullmatch(r"adloco_[a-z_]+[a-z]", measure.name)
        assert measure.name.endswith("_total") == (measure.kind == "counter"), measure.name
        base = measure.name.removesuffix("_total")
        assert base.endswith(UNITS) or base in NUMBERS, f"{measure.name}: what unit?"
        unit = measure.unit.split()[-1:]
        assert measure.unit in ("", "rounds") or base.endswith(f"_{unit[0]}"), f"{measure.name}: {measure.unit}"
        assert measure.meaning.endswith(".") and all(len(labels) == len(measure.label_names) for labels in measure.samples)


def test_a_node_that_has_not_begun_has_the_same_names() -> None:
    before, after = named(measures(Status())), named(measures(replay(events())))
    assert list(before) == list(after)
    assert not before["adloco_run_info"].samples and not before["adloco_compute_utilisation_ratio"].samples


def test_values_are_those_of_the_views() -> None:
    status = replay(with_traffic())
    found = named(measures(status))
    totals = traffic.totals(status)
    assert found["adloco_tokens_total"].samples == {(): totals.tokens}
    assert found["adloco_round"].samples == {(): status.current_round}
    rounds = len([event for event in events(12) if event["event"] == "round"])
    assert found["adloco_sent_bytes_total"].samples == {
        ("averaging",): 700 * rounds,
        ("gossip",): 30 * rounds,
        ("state",): 4000 * rounds,
    }
    assert totals.bytes_sent == 4730 * rounds and totals.bytes_received == 21 * rounds
    assert traffic.bytes_per_token(status) == pytest.approx(4730 * rounds / totals.tokens)
    assert found["adloco_peers"].samples[("alive",)] >= 1
    assert [labels[3] for labels in found["adloco_run_info"].samples] == [THIS]
    batches = {row.instance: row.effective_batch for row in table_rows.instance_rows(status)}
    assert found["adloco_instance_effective_batch_samples"].samples == {(str(key),): batches[key] for key in batches}


def test_without_counted_traffic_the_committed_averages_are_what_is_known() -> None:
    status = replay(events(3))
    sent = sum(event["bytes_sent"] for event in events(3) if event["event"] == "round")
    assert named(measures(status))["adloco_sent_bytes_total"].samples == {("averaging",): sent}


def asked(expression: str) -> set[str]:
    """Names of metrics in a query."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\([a-z_, ]*\)", " ", expression)
    return {name for name in re.findall(r"[a-z_]+", bare) if name not in FUNCTIONS}


def test_the_dashboard_asks_only_for_what_there_is() -> None:
    dashboard = json.loads((GRAFANA / "adloco-peer.json").read_text())
    known = named(measures(replay(with_traffic())))
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    used = set()
    for target in targets:
        names = asked(target["expr"])
        assert (names or target["expr"] == EVERYTHING) and names <= set(known), target["expr"]
        used |= names
        labels = {label for name in names for label in known[name].label_names} | {"job", "instance"}
        for clause in re.findall(r"\{([^}]*)\}", target["expr"]):
            assert {*re.findall(r"(\w+)\s*=~?", clause)} <= {*labels, "__name__"}, target["expr"]
        assert set(re.findall(r"by \((\w+)\)", target["expr"])) <= labels, target["expr"]
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target["legendFormat"]
        events_asked = re.findall(r'event=~"([^"]+)"', target["expr"])
        assert all(name in TROUBLES for names in events_asked for name in names.split("|"))
    assert len(used) >= 15
    assert any(target["expr"] == EVERYTHING for target in targets), "a table of all metrics, also of those that no panel draws"
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["source", "job"]
    cells = [(panel["gridPos"], panel["title"]) for panel in dashboard["panels"]]
    assert all(cell["x"] + cell["w"] <= 24 for cell, _ in cells)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(cells)


def test_the_example_for_prometheus_is_yaml_that_it_reads() -> None:
    (job,) = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["job_name"] == "adloco" and job["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]


def test_alerts_ask_only_for_what_there_is() -> None:
    known = set(named(measures(Status())))
    (group,) = yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]
    (rules,) = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())["rule_files"]
    assert rules == "alerts.yaml"
    for rule in group["rules"]:
        assert asked(rule["expr"]) <= known | {"up"}, rule["expr"]
        assert set(re.findall(r'event="([^"]+)"', rule["expr"])) <= set(TROUBLES)
        labels = {label for name in asked(rule["expr"]) for label in named(measures(Status())).get(name, NO_LABELS).label_names}
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= {*labels, "instance"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)")
def test_prometheus_reads_its_configuration_and_the_alerts() -> None:
    command = ["promtool", "check", "config", str(GRAFANA / "prometheus.yaml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_load_of_machine_and_gpu_is_in_the_metrics_and_a_processor_has_no_gpu() -> None:
    gpu = Gpu(index=1, memory_bytes=3, memory_limit_bytes=8, utilisation_fraction=0.5, temperature_celsius=71.0)
    machine = Machine(processor_fraction=0.25, memory_bytes=5, memory_limit_bytes=16, process_memory_bytes=2, gpus=(gpu,))
    found = named(measures(apply(replay(events(3)), Stamped(time=0.0, event=machine))))
    assert found["adloco_machine_processor_ratio"].samples == {(): 0.25}
    assert found["adloco_gpu_memory_limit_bytes"].samples == {("1",): 8.0}
    assert found["adloco_gpu_temperature_celsius"].samples == {("1",): 71.0}
    assert found["adloco_gpu_power_watts"].samples == {}  # this driver reports none
    assert named(measures(replay(events(3))))["adloco_gpu_memory_bytes"].samples == {}


def test_a_bootstrap_counts_its_visitors() -> None:
    (measure,) = metrics.bootstrap_measures(3)
    assert measure.samples == {(): 3.0} and not metrics.bootstrap_measures(None)[0].samples


def test_the_dashboard_has_units_and_meanings_from_the_metrics() -> None:
    """`python -m tests.views.golden` brings it up to date."""
    assert DASHBOARD.read_text("ascii") == dashboard()


def test_a_new_metric_is_on_every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declared, and nothing else done: it is on the terminal, the page, in `status` and at the metrics endpoint."""
    new = metrics._metric("invented_bytes", "bytes", "Made up.", 1234.0, "{} invented")
    monkeypatch.setattr(metrics, "_run", lambda status: [new])
    status, words = replay(events()), "1.23 kB invented"
    assert words in screen(status, 200, 60)
    fields = node_status.summary(status)
    assert words in "\n".join(node_status.lines(fields))
    assert {"labels": [], "value": 1234.0} in [sample for metric in fields["metrics"] for sample in metric["samples"]]
    own: Any = page._own(status, "")
    assert {"text": words, "meaning": "Made up."} in own["metrics"]
    assert b"adloco_invented_bytes 1234.0" in exposition(metrics.measures(status), "text/plain")[0]
