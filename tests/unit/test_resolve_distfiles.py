"""Which files of a project an image can install."""

from __future__ import annotations

from strix_finetune.resolve.distfiles import Listing, choose, supported
from strix_finetune.resolve.page import Link


def chosen(*files: str | Link, project: str = "torch", python: str = "3.13", glibc: str = "2.41-12") -> Listing:
    links = [Link(file, f"https://x.example/{file}") if isinstance(file, str) else file for file in files]
    return choose(project, links, supported(python, glibc), python)


def names(listing: Listing) -> list[str]:
    return [file.link.file for file in listing.files]


def test_the_python_and_the_machine_of_the_image() -> None:
    fits = "torch-2.13.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl"
    listing = chosen(
        "torch-2.13.0+rocm10.0.0-cp312-cp312-linux_x86_64.whl",
        "torch-2.13.0+rocm10.0.0-cp313-cp313-win_amd64.whl",
        "torch-2.13.0+rocm10.0.0-cp313-cp313t-linux_x86_64.whl",
        "torch-2.13.0+rocm10.0.0-cp313-cp313-manylinux_2_28_aarch64.whl",
        "torch-2.13.0+rocm10.0.0-cp313-cp313-macosx_11_0_x86_64.whl",
        "torch-2.13.0+rocm10.0.0-cp313-cp313-musllinux_1_2_x86_64.whl",
        fits,
    )
    assert names(listing) == [fits]
    assert not listing.unfit


def test_the_glibc_of_the_image() -> None:
    new, old = "torch-1.0-cp313-cp313-manylinux_2_41_x86_64.whl", "torch-1.0-cp313-cp313-manylinux_2_28_x86_64.whl"
    assert names(chosen(old, new)) == [new]
    assert names(chosen(old, new, glibc="2.40")) == [old]
    assert [str(version) for version in chosen(old, new, glibc="2.17").unfit] == ["1.0"]
    assert names(chosen("torch-1.0-cp313-cp313-manylinux2014_x86_64.whl", glibc="2.17"))
    assert names(chosen("torch-1.0-cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"))


def test_one_file_a_version_the_newest_first() -> None:
    listing = chosen(
        "torch-2.13.0+rocm7.0-cp313-cp313-linux_x86_64.whl",
        "torch-2.13.0+rocm10.0-py3-none-any.whl",
        "torch-2.13.0+rocm10.0-cp313-cp313-linux_x86_64.whl",
        "torch-2.9.0-1-cp313-cp313-linux_x86_64.whl",
        "torch-2.9.0-2-cp313-cp313-linux_x86_64.whl",
    )
    assert names(listing) == [
        "torch-2.13.0+rocm10.0-cp313-cp313-linux_x86_64.whl",
        "torch-2.13.0+rocm7.0-cp313-cp313-linux_x86_64.whl",
        "torch-2.9.0-2-cp313-cp313-linux_x86_64.whl",
    ]


def test_a_source_archive_only_where_there_is_nothing_else() -> None:
    listing = chosen("rocm-10.0.0.tar.gz", "rocm-7.14.0.tar.gz", project="rocm")
    assert names(listing) == ["rocm-10.0.0.tar.gz", "rocm-7.14.0.tar.gz"]
    assert not listing.files[0].is_wheel
    listing = chosen("rocm-10.0.0.tar.gz", "rocm-10.1.0.tar.gz", "rocm-10.1.0-py3-none-any.whl", project="rocm")
    assert names(listing) == ["rocm-10.1.0-py3-none-any.whl", "rocm-10.0.0.tar.gz"]
    listing = chosen("torch-2.13.0.tar.gz", "torch-2.13.0-cp313-cp313-win_amd64.whl")
    assert listing.files == ()
    assert [str(version) for version in listing.unfit] == ["2.13.0"]


def test_what_was_withdrawn_or_is_for_another_python() -> None:
    file = "torch-2.13.0-py3-none-any.whl"
    listing = chosen(Link(file, "https://x.example/", yanked=True))
    assert (listing.files, [str(version) for version in listing.yanked]) == ((), ["2.13.0"])
    listing = chosen(Link(file, "https://x.example/", yanked=True), "torch-2.13.0-cp313-cp313-linux_x86_64.whl")
    assert len(listing.files) == 1
    assert not listing.yanked
    assert not chosen(Link(file, "https://x.example/", python=">=3.14")).files
    assert chosen(Link(file, "https://x.example/", python=">=3.13,<3.14")).files
    assert chosen(Link(file, "https://x.example/", python="whatever")).files


def test_names_that_are_none_and_files_of_others() -> None:
    mine = "amd_torch_device_gfx1151-1.0-py3-none-any.whl"
    odd = ("torch.whl", "torch-x-py3-none-any.whl", "torch-1.0-py3.whl", f"torch-{'9' * 6000}-py3-none-any.whl")
    other = "torchvision-1.0-py3-none-any.whl"
    listing = chosen(*odd, other, mine, project="amd-torch-device-gfx1151")
    assert names(listing) == [mine]
    assert not listing.strange
    assert chosen(*odd, other).strange == other
    assert chosen(*odd) == Listing("torch")
