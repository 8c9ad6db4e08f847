"""How large a layer may be: which budget holds, what is held against it, and what is said when it is too small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strix_finetune import budget, cli, graph, names
from strix_finetune.engine.base import Layer
from strix_finetune.errors import EngineError, TooLarge
from strix_finetune.model import Stack
from tests.conftest import Images
from tests.fakes import FakeEngine

MB = 10**6


@pytest.fixture
def site(chain: Images) -> Images:
    """The chain, where torch may add 5 MB."""
    chain.layer(
        "torch",
        'parent = ["rccl", "base"]\nbudget_mb = 5\npackages = { torch = ["python3-torch"] }\n',
        "FROM {{ parent }}\nRUN apt-get install {{ apt('torch') }}\n",
    )
    return chain


def limit(stack: Stack, layer: str = "torch") -> tuple[int, str] | None:
    found = budget.of(stack.node(layer), stack.channel)
    return (found.size, f"{found.place.path.name}:{found.place.line}") if found else None


def test_the_user_then_the_channel_then_the_layer(site: Images, tmp_path: Path) -> None:
    assert limit(site.stack()) == (5 * MB, "layer.toml:4")
    assert limit(site.stack(), "app") is None
    site.channel("large", "[layers.torch]\nbudget_mb = 70\n")
    assert limit(site.stack(channel="large")) == (70 * MB, "large.toml:7")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "override.toml").write_text("[layers.torch]\nbudget_mb = 90\n[layers.app]\nbudget_mb = 1\n")
    assert limit(site.stack(channel="large", override=mine)) == (90 * MB, "override.toml:2")
    assert limit(site.stack(channel="large", override=mine), "app") == (1 * MB, "override.toml:4")


@pytest.fixture
def engine(site: Images) -> FakeEngine:
    """Holds rccl, of 40 MB, and a torch that adds what the test says."""
    engine = FakeEngine()
    rccl = engine.add({}, names.layer_ref("rccl", "gfx1151", site.render()["rccl"].key))
    engine.layers[rccl] = [Layer("COPY", 10 * MB), Layer("ADD", 30 * MB)]
    return engine


def torch(engine: FakeEngine, *sizes: int) -> str:
    image = engine.add({})
    rccl = next(iter(engine.layers.values()))
    engine.layers[image] = [*(Layer("RUN", size) for size in sizes), *rccl]
    return image


def check(site: Images, engine: FakeEngine, image: str) -> None:
    budget.check(engine, site.stack(), site.render()["torch"], image)


def test_only_what_a_layer_adds_counts(site: Images, engine: FakeEngine) -> None:
    check(site, engine, torch(engine, 0, 5 * MB))
    with pytest.raises(TooLarge):
        check(site, engine, torch(engine, 1, 5 * MB))


def test_a_layer_without_a_parent_counts_as_a_whole(site: Images, engine: FakeEngine) -> None:
    site.layer("base", "budget_mb = 4\n", "FROM scratch\nADD {{ rootfs }} /\n")
    image = engine.add({})
    engine.layers[image] = [Layer("ADD", 4 * MB)]
    budget.check(engine, site.stack(), site.render()["base"], image)
    engine.layers[image] = [Layer("RUN", 1), Layer("ADD", 4 * MB)]
    with pytest.raises(TooLarge, match=r"'base' adds 4.0 MB and may add 4.0 MB"):
        budget.check(engine, site.stack(), site.render()["base"], image)


def test_the_sentence_names_the_size_the_budget_and_the_largest_folders(
    site: Images, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folders(engine: object, image: str, parent: str) -> dict[str, int]:
        assert parent.startswith("localhost/strix-finetune/rccl:gfx1151-")
        return {"usr/lib/torch": 5 * MB, "usr/share": 2 * MB, "opt": MB}

    monkeypatch.setattr("strix_finetune.engine.contents.own_folders", folders)
    with pytest.raises(TooLarge) as caught:
        check(site, engine, torch(engine, 8 * MB))
    [sentence] = site.faults(caught.value)
    assert sentence == (
        "images/torch/layer.toml:4: 'torch' adds 8.0 MB and may add 5.0 MB, most of it in /usr/lib/torch (5.0 MB), "
        "/usr/share (2.0 MB), /opt (1.0 MB); leave out what nobody needs, or raise budget_mb; no tag was moved"
    )
    assert caught.value.exit_code == 1

    def fails(engine: object, image: str, parent: str) -> dict[str, int]:
        raise EngineError("cannot be exported")

    monkeypatch.setattr("strix_finetune.engine.contents.own_folders", fails)
    with pytest.raises(TooLarge, match=r"adds 8.0 MB and may add 5.0 MB; leave out"):
        check(site, engine, torch(engine, 8 * MB))


@pytest.fixture
def listed(site: Images, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """What `images` sees: the layers of the chain with their names, and an older torch that was larger."""
    stack, keyed = site.stack(), site.render()
    for number, node in enumerate(stack.nodes):
        layer = keyed[node.name]
        labels = {
            names.KEY: layer.key,
            names.LAYER: node.name,
            names.TARGET: "gfx1151",
            names.CHANNEL: "debian",
            names.PARTS: json.dumps(dict(layer.parts)),
        }
        image = engine.add(labels, names.layer_ref(node.name, "gfx1151", layer.key))
        engine.refs[names.moving_ref(node.name, "gfx1151")] = image
        engine.layers[image] = [Layer("RUN", MB)] * (number + 1)
        if node.name == "torch":
            old = engine.add(labels | {names.KEY: "0" * 64}, names.layer_ref("torch", "gfx1151", "0" * 64))
            engine.layers[old] = [Layer("RUN", 900 * MB)]
    monkeypatch.setattr("strix_finetune.engine.select.connect", lambda kind, env: engine)
    return engine


def test_the_table_of_sizes_against_budgets(
    site: Images, listed: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    order = [node.name for node in site.stack().nodes]
    adds = order.index("torch") - order.index("rccl")
    assert cli.main(["images", "--budget", "--images", str(site.path)]) == 0
    told = capsys.readouterr()
    [head, *lines] = told.out.splitlines()
    assert head.split() == ["IMAGE", "KEY", "SIZE", "ADDS", "BUDGET"]
    assert len(lines) == len(order), "older builds of a layer are no business of the budget"
    row = next(line for line in lines if "/torch:" in line)
    assert row.split("  ")[-2:] == [f"{adds}.0 MB", "5.0 MB"]
    assert all(line.endswith("none") for line in lines if line is not row)
    assert told.err == ""


def test_one_that_is_over_is_an_exit_code_and_a_sentence(
    site: Images, listed: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    image = listed.refs["localhost/strix-finetune/torch:gfx1151"]
    listed.layers[image] = [Layer("RUN", 60 * MB), *listed.layers[image]]
    assert cli.main(["images", "--budget", "--images", str(site.path), "--json"]) == 1
    told = capsys.readouterr()
    rows = {row["layer"]: row for row in json.loads(told.out)["images"]}
    assert rows["torch"]["budget"] == 5 * MB < rows["torch"]["adds"]
    assert rows["app"]["budget"] is None
    [sentence] = told.err.splitlines()
    assert sentence.startswith("error: torch of gfx1151 on debian adds 6")
    assert sentence.endswith("MB and may add 5.0 MB; build it smaller, or raise its budget_mb")
    (tmp_path / "override.toml").write_text("[layers.torch]\nbudget_mb = 90\n")
    assert cli.main(["images", "--budget", "--images", str(site.path), "--override", str(tmp_path)]) == 0
    capsys.readouterr()
    assert cli.main(["images"]) == 0
    assert "BUDGET" not in capsys.readouterr().out


def test_what_the_definitions_do_not_know_has_no_budget(
    site: Images, listed: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {names.KEY: "1" * 64, names.LAYER: "torch", names.TARGET: "gfx9999", names.CHANNEL: "gone"}
    image = listed.add(labels, names.moving_ref("torch", "gfx9999"))
    listed.layers[image] = [Layer("RUN", 900 * MB)]
    assert cli.main(["images", "--budget", "--images", str(site.path), "--json"]) == 0
    rows = {row["target"]: row for row in json.loads(capsys.readouterr().out)["images"]}
    assert (rows["gfx9999"]["adds"], rows["gfx9999"]["budget"]) == (900 * MB, None)


def test_the_shipped_budgets_are_of_layers_that_exist() -> None:
    from strix_finetune.load import load
    from strix_finetune.paths import find

    project = load(find().images)
    stack = graph.stack(project, "gfx1151", "debian")
    assert all(budget.of(node, stack.channel) for node in stack.nodes)
