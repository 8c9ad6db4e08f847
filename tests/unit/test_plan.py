"""The plan says what happens to each layer and why, in the words that people read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from strix_finetune import names
from strix_finetune.engine.base import Image
from strix_finetune.model import Keyed, Stack
from strix_finetune.plan import Build, NotNeeded, Plan, Reuse, differences, make_plan, tags_of
from tests.conftest import Images, lock

Layers = dict[str, Keyed]


def stored(layers: Layers, stack: Stack, *left_out: str, parts: str | None = None) -> list[Image]:
    """The engine's images after all layers but those `left_out` were built."""
    found = []
    for number, (name, layer) in enumerate(layers.items()):
        labels = {names.KEY: layer.key, names.PARTS: json.dumps(dict(layer.parts)) if parts is None else parts}
        if name not in left_out:
            found.append(Image(f"sha256:{number}", tags_of(layer, stack), labels, 1))
    return found


def plan(images: Images, store: list[Image], *wanted: str, rebuild: bool = False, **render: Any) -> Plan:
    layers = images.render(**render)
    return make_plan(images.stack(), layers.values(), wanted or ("app",), store, rebuild=rebuild)


def said(made: Plan) -> dict[str, str]:
    return {step.name: step.action.reason for step in made.steps}


@pytest.fixture
def built(chain: Images) -> tuple[Images, list[Image]]:
    chain.write("images/base/files/etc/x", "x")
    return chain, stored(chain.render(), chain.stack())


def test_the_first_build(chain: Images) -> None:
    made = plan(chain, [])
    assert said(made) == dict.fromkeys(("base", "devel", "rccl", "torch", "app"), "build, no image of it yet")
    assert [step.name for step in made.builds] == [step.name for step in made.steps]
    app = made.step("app")
    assert app.tags == (
        f"localhost/strix-finetune/app:gfx1151-{app.layer.key[:12]}",
        "localhost/strix-finetune/app:gfx1151",
        "localhost/strix-finetune:gfx1151",
    )
    assert len(made.step("base").tags) == 2


def test_nothing_changed(built: tuple[Images, list[Image]]) -> None:
    chain, store = built
    made = plan(chain, store)
    assert set(said(made).values()) == {"up to date"}
    assert all(isinstance(step.action, Reuse) and not step.action.names_lost for step in made.steps)
    assert made.builds == ()


def edit(path: str, old: str, new: str) -> Callable[[Images], None]:
    def change(images: Images) -> None:
        text = (images.root / path).read_text()
        assert old in text
        images.write(path, text.replace(old, new))

    return change


def both(*changes: Callable[[Images], Any]) -> Callable[[Images], None]:
    def change(images: Images) -> None:
        for one in changes:
            one(images)

    return change


def series(text: str) -> Callable[[Images], Any]:
    def change(images: Images) -> None:
        images.write("images/rccl/patches/series", text)
        for name in text.split():
            if not (images.path / "rccl/patches" / name).exists():
                images.write(f"images/rccl/patches/{name}", "")

    return change


@pytest.mark.parametrize(
    ("change", "layer", "reason"),
    [
        (edit("images/rccl/patches/0002-x.patch", "d", "e"), "rccl", "rebuild, patch 0002-x.patch changed"),
        (series("0001-a.patch\n0002-x.patch\n0003-y.patch\n"), "rccl", "rebuild, patch 0003-y.patch added"),
        (series("0001-a.patch\n"), "rccl", "rebuild, patch 0002-x.patch removed"),
        (series("0002-x.patch\n0001-a.patch\n"), "rccl", "rebuild, Dockerfile changed"),
        (edit("images/rccl/Dockerfile.j2", "make", "make -j"), "rccl", "rebuild, Dockerfile changed"),
        (edit("images/base/layer.toml", "jobs = 2", "jobs = 4"), "base", "rebuild, jobs 2 → 4"),
        (edit("images/channels/debian.toml", "sid", "trixie"), "base", "rebuild, suite sid → trixie"),
        (edit("images/base/layer.toml", '["bash"]', '["bash", "git"]'), "base", "rebuild, git none → 1.0-1"),
        (edit("images/base/files/etc/x", "x", "y"), "base", "rebuild, files/etc/x changed"),
        (lambda images: images.write("images/base/files/y", ""), "base", "rebuild, files/y added"),
        (lambda images: (images.path / "base/files/etc/x").unlink(), "base", "rebuild, files/etc/x removed"),
        (lambda images: (images.path / "base/files/etc/x").chmod(0o755), "base", "rebuild, files/etc/x changed"),
        (edit("python/strix_train/run.py", "1", "2"), "app", "rebuild, strix_train/run.py changed"),
        (edit("images/base/Dockerfile.j2", "ADD", "COPY"), "devel", "rebuild, parent base changed"),
        (edit("images/base/Dockerfile.j2", "ADD", "COPY"), "torch", "rebuild, parent rccl changed"),
        (edit("images/devel/Dockerfile.j2", "tools", "x"), "rccl", "rebuild, builder devel changed"),
        (edit("images/rccl/layer.toml", '"gpu"', '"cpu"'), "torch", "rebuild, parent is base now, no more on rccl"),
        (
            both(*(lambda images, name=name: images.write(f"images/base/files/{name}", "") for name in "abcdef")),
            "base",
            "rebuild, files/a added, files/b added, files/c added and 3 more",
        ),
    ],
)  # fmt: skip
def test_reasons(built: tuple[Images, list[Image]], change: Callable[[Images], None], layer: str, reason: str) -> None:
    chain, store = built
    change(chain)
    made = plan(chain, store)
    assert made.step(layer).action == Build(reason)


def test_reasons_of_locked_inputs(built: tuple[Images, list[Image]]) -> None:
    chain, store = built
    store = stored(chain.render(locked=lock({"python3-torch": "2.14.1-1"})), chain.stack())
    made = plan(chain, store, locked=lock({"python3-torch": "2.14.2-1"}))
    assert said(made) == {
        "base": "up to date",
        "devel": "up to date",
        "rccl": "up to date",
        "torch": "rebuild, python3-torch 2.14.1-1 → 2.14.2-1",
        "app": "rebuild, parent torch changed",
    }
    made = plan(chain, store, locked=lock({"python3-torch": "2.14.1-1"}, pip={"app": b"peft==2\n"}))
    assert made.step("app").action == Build("rebuild, locked requirements 'app' changed")


def test_reason_of_an_archive_and_an_image(chain: Images) -> None:
    text = (chain.path / "channels/debian.toml").read_text()
    chain.write("images/channels/debian.toml", text.replace('"mmdebstrap"', '"image", image = "r.example/d:sid"'))
    chain.layer("base", "", "FROM {{ base_image }}\n")

    def archive(digit: str) -> None:
        toml = (
            f'parent = ["base"]\nserves = "gpu"\n[archives.src]\nurl = "https://e.example/v1"\nsha256 = "{digit * 64}"'
        )
        chain.layer("rccl", toml + "\nsize = 9\n", "FROM {{ parent }}\nADD {{ archive('src') }} /\n")

    def image(digit: str) -> str:
        return f"r.example/d@sha256:{digit * 64}"

    archive("1")
    store = stored(chain.render(locked=lock(image=image("a"))), chain.stack())
    archive("2")
    made = plan(chain, store, locked=lock(image=image("a")))
    assert made.step("rccl").action == Build(f"rebuild, src {'1' * 12} → {'2' * 12}")
    made = plan(chain, store, locked=lock(image=image("b")))
    assert made.step("base").action == Build(f"rebuild, image {'a' * 12} → {'b' * 12}")


def test_a_builder_is_built_only_when_its_user_is(chain: Images) -> None:
    layers, stack = chain.render(), chain.stack()
    made = plan(chain, stored(layers, stack, "devel"))
    assert made.step("devel").action == NotNeeded()
    assert made.builds == ()
    made = plan(chain, stored(layers, stack, "devel", "rccl", "torch", "app"))
    assert [step.name for step in made.builds] == ["devel", "rccl", "torch", "app"]
    # on purpose
    made = plan(chain, stored(layers, stack, "devel"), "devel")
    assert [step.name for step in made.builds] == ["devel"]
    # a builder that stands on another one
    chain.layer("tools", 'parent = ["base"]\nrole = "builder"\nserves = "gpu"\n')
    chain.layer("devel", 'parent = ["tools"]\nrole = "builder"\nserves = "gpu"\n')
    layers, stack = chain.render(), chain.stack()
    made = plan(chain, stored(layers, stack, "devel", "tools"))
    assert made.builds == ()


def test_parents_of_what_is_there_are_not_needed(chain: Images) -> None:
    layers, stack = chain.render(), chain.stack()
    made = plan(chain, stored(layers, stack, "base", "torch", "devel", "rccl"))
    assert said(made) == {
        "base": "not needed",
        "devel": "not needed",
        "rccl": "not needed",
        "torch": "not needed",
        "app": "up to date",
    }


def test_the_next_build_goes_on_where_the_last_one_stopped(chain: Images) -> None:
    layers, stack = chain.render(), chain.stack()
    made = plan(chain, stored(layers, stack, "torch", "app"))
    assert [step.name for step in made.builds] == ["torch", "app"]
    assert isinstance(made.step("rccl").action, Reuse)


def test_names_that_were_lost(built: tuple[Images, list[Image]]) -> None:
    chain, store = built
    app = next(image for image in store if len(image.tags) == 3)
    store[store.index(app)] = Image(app.id, app.tags[:1], app.labels, 1)
    store.append(Image("sha256:other", (app.tags[2],), {names.KEY: "x"}, 1))
    action = plan(chain, store).step("app").action
    assert action == Reuse(app.id, ("localhost/strix-finetune/app:gfx1151", "localhost/strix-finetune:gfx1151"))
    # a layer that nobody asked for keeps to itself
    base = next(image for image in store if "/base:" in image.tags[0])
    store[store.index(base)] = Image(base.id, base.tags[:1], base.labels, 1)
    assert plan(chain, store).step("base").action == Reuse(base.id)
    assert plan(chain, store, "base").step("base").action == Reuse(base.id, ("localhost/strix-finetune/base:gfx1151",))


def test_a_name_without_its_key_is_not_trusted(built: tuple[Images, list[Image]]) -> None:
    chain, store = built
    app = next(image for image in store if len(image.tags) == 3)
    forged: Mapping[str, str] = {**app.labels, names.KEY: "0" * 64}
    store[store.index(app)] = Image(app.id, app.tags, forged, 1)
    assert isinstance(plan(chain, store).step("app").action, Build)


def test_rebuild_is_for_what_was_asked(built: tuple[Images, list[Image]]) -> None:
    chain, store = built
    made = plan(chain, store, "torch", rebuild=True)
    assert [(step.name, step.action.reason) for step in made.builds] == [("torch", "rebuild, asked for")]
    assert made.step("app").action.reason == "up to date"
    store = [image for image in store if "/torch:" not in image.tags[0]]
    assert plan(chain, store, "torch", rebuild=True).step("torch").action == Build("build, no image of it yet")


@pytest.mark.parametrize(
    "label", ["", "{", "[]", "[1]", "3", '"x"', "null", '{"a": 1}', '{"a": null}', "{}", "[" * 5000, "\x00", "NaN"]
)
def test_a_label_that_somebody_else_wrote(chain: Images, label: str) -> None:
    store = stored(chain.render(), chain.stack(), parts=label)
    chain.write("images/app/Dockerfile.j2", "FROM {{ parent }}\nRUN new\n")
    made = plan(chain, store)
    assert made.step("app").action == Build("rebuild, the present image does not say what it is made of")


def test_an_image_that_lost_its_key_but_not_its_name(chain: Images) -> None:
    """Its smoke tests passed once under the immutable name; without that name nobody knows."""
    store = stored(chain.render(), chain.stack())
    store = [Image(image.id, image.tags[1:], image.labels, 1) for image in store]
    assert plan(chain, store, "base").step("base").action == Build("rebuild, its smoke-tested image is gone")


def test_another_target_is_another_image(built: tuple[Images, list[Image]]) -> None:
    chain, store = built
    stack = chain.stack("cpu")
    made = make_plan(stack, chain.render("cpu").values(), ("app",), store)
    assert set(said(made).values()) == {"build, no image of it yet"}


def test_a_wheel_is_told_by_its_version_and_by_its_hash() -> None:
    before = {"wheel torch": "2.13.0+rocm10 (aaaaaaaaaaaa)", "wheel rocm": "10.0.0 (bbbbbbbbbbbb)", "Dockerfile": "1"}
    after = before | {"wheel torch": "2.14.0+rocm10 (cccccccccccc)", "Dockerfile": "2"}
    assert list(differences(before, after)) == [
        "torch 2.13.0+rocm10 (aaaaaaaaaaaa) → 2.14.0+rocm10 (cccccccccccc)",
    ]
    after = {**before, "wheel rocm": "10.0.0 (dddddddddddd)", "wheel triton": "3.8.0 (eeeeeeeeeeee)"}
    assert list(differences(before, after)) == [
        "rocm 10.0.0 (bbbbbbbbbbbb) → 10.0.0 (dddddddddddd)",
        "triton none → 3.8.0 (eeeeeeeeeeee)",
    ]


# smoke tests

TESTS = {"base": {"base/a.sh": "1"}, "devel": {}, "rccl": {}, "torch": {"base/a.sh": "1", "torch/t.py": "2"}, "app": {}}


def retests(built: tuple[Images, list[Image]], passed: Mapping[str, Mapping[str, str]], *wanted: str) -> dict[str, str]:
    """Layer → why it is tested again."""
    chain, store = built
    layers = chain.render()
    made = make_plan(chain.stack(), layers.values(), wanted or ("app",), store, tests=TESTS, passed=passed)
    assert not made.builds
    return {s.name: s.action.reason for s in made.steps if isinstance(s.action, Reuse) and s.action.retest}


def ids(built: tuple[Images, list[Image]]) -> dict[str, str]:
    chain, store = built
    by_tag = {tag: image.id for image in store for tag in image.tags}
    return {name: by_tag[f"localhost/strix-finetune/{name}:gfx1151"] for name in chain.render()}


def test_tests_that_were_passed_are_not_run_again(built: tuple[Images, list[Image]]) -> None:
    everything = {ids(built)[name]: tests for name, tests in TESTS.items()}
    assert retests(built, everything) == {}
    # a test that is gone needs no run
    more = {image: {**tests, "base/old.sh": "9"} for image, tests in everything.items()}
    assert retests(built, more) == {}


def test_a_test_that_changed_is_run_again_and_nothing_is_built(built: tuple[Images, list[Image]]) -> None:
    passed = {ids(built)[name]: tests for name, tests in TESTS.items()}
    passed[ids(built)["base"]] = {"base/a.sh": "0"}
    passed[ids(built)["torch"]] = {"base/a.sh": "0"}
    assert retests(built, passed) == {
        "base": "up to date, smoke test base/a.sh changed",
        "torch": "up to date, smoke tests base/a.sh changed, torch/t.py added",
    }
    # only what was asked for and what it is made of
    assert set(retests(built, passed, "rccl")) == {"base"}
    assert set(retests(built, passed, "devel")) == {"base"}


def test_tests_of_an_image_that_says_nothing_are_run_once(built: tuple[Images, list[Image]]) -> None:
    assert retests(built, {}) == dict.fromkeys(
        ("base", "torch"), "up to date, the smoke tests that it passed are not known"
    )


def test_a_layer_that_is_built_is_tested_anyway(built: tuple[Images, list[Image]]) -> None:
    chain, store = built
    made = make_plan(chain.stack(), chain.render().values(), ("app",), store[:-1], tests=TESTS, passed={})
    assert [step.name for step in made.builds] == [list(chain.render())[-1]]
