"""deploy/grafana.json: a dashboard that asks only for what /metrics prints."""
import json
import pathlib
import re

import pytest

from server_quern import Quern

REPO = pathlib.Path(__file__).resolve().parents[2]
FUNCTIONS = {"sum", "max", "rate", "histogram_quantile", "by", "label_values"}


@pytest.fixture(scope="module")
def board():
    return json.loads((REPO / "deploy" / "grafana.json").read_text())


@pytest.fixture(scope="module")
def printed():
    """The names and label names of every sample that a server prints after one request."""
    with Quern() as server:
        assert server.post("/v1/completions", prompt="To be", max_tokens=4)[0] == 200
        text = server.call("/metrics")[2].decode()
    out = {}
    for name, labels in re.findall(r"^([\w:]+)(?:\{(.*)\})? \S+$", text, re.M):
        out.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return out


def queries(board):
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def names_of(query):
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", " ", query)
    return {n for n in re.findall(r"[a-zA-Z_][\w:]*", bare) if n not in FUNCTIONS | {"model_name", "instance"}}


def test_every_metric_is_one_that_the_server_prints(board, printed):
    asked = set().union(*(names_of(q) for q in queries(board)))
    assert len(asked) > 20
    assert asked - set(printed) == set()


def test_every_label_is_one_that_the_metric_has(board, printed):
    for query in queries(board):
        labels = set(re.findall(r'(\w+)=~?"', query))
        labels |= {x.strip() for group in re.findall(r"by \(([^)]*)\)", query) for x in group.split(",")}
        labels.discard("instance")  # Prometheus adds it
        for name in names_of(query):
            assert labels <= printed[name], f"{name} has no {labels - printed[name]}"


def test_panels_do_not_overlap_and_fill_the_grid(board):
    cells = set()
    for panel in board["panels"]:
        g = panel["gridPos"]
        assert g["x"] + g["w"] <= 24
        for cell in ((x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])):
            assert cell not in cells, panel["title"]
            cells.add(cell)
    assert len(cells) == 24 * (max(y for _, y in cells) + 1)
    assert len({p["id"] for p in board["panels"]}) == len({p["title"] for p in board["panels"]}) == len(board["panels"])


def test_queries_are_balanced(board):
    for query in queries(board):
        for pair in ("()", "{}", "[]"):
            assert query.count(pair[0]) == query.count(pair[1]), query
        assert query.count('"') % 2 == 0


def test_a_wrong_name_is_noticed():
    assert names_of('sum by (le) (rate(vllm:nosuch_bucket{a="b"}[5m]))') == {"vllm:nosuch_bucket"}
