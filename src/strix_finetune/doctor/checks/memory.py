"""What fits: the limits on GPU memory, and the settings that make them."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import distro, gpus, known
from strix_finetune.doctor import memory as facts
from strix_finetune.doctor.gpus import Gpu
from strix_finetune.doctor.host import Host, number
from strix_finetune.doctor.memory import GIB, LEAST_LEFT, PAGE, gib, words
from strix_finetune.doctor.values import Check, Datum, Finding

# a carve-out of the BIOS beyond this is worth a word
_SMALL = 8 * GIB
_TRADE = (
    "it takes nothing until it is used; but TTM's maintainer warns that above one half the kernel may fail to make "
    "room when memory runs out, so leave some"
)


def memory(host: Host) -> Iterator[Finding]:
    for gpu in gpus.meant(host)[:1]:
        if gpus.unified(host, gpu):
            yield _unified(host, gpu)
        elif gpu.vram:
            fits = known.fitting(known.table().sizes, gpu.vram)
            yield Finding(
                "ok",
                f"{gpu.gfx} has {words(gpu.vram)} of its own{_fit_words(fits)}",
                data={"usable_gib": gib(gpu.vram), "fits": fits},
            )
        else:
            yield Finding("unknown", f"the driver does not say how much memory {gpu.gfx} has")


def _unified(host: Host, gpu: Gpu) -> Finding:
    found = facts.find(host, gpu)
    if found is None:
        return Finding("unknown", f"the driver does not say how much memory {gpu.gfx} may use")
    sizes = known.table().sizes
    fits = known.fitting(sizes, found.usable)
    data: dict[str, Datum] = {
        "installed_gib": gib(found.installed),
        "system_gib": gib(found.total),
        "carved_gib": gib(found.carved),
        "limit_gib": gib(found.limit),
        "usable_gib": gib(found.usable),
        "advised_gib": gib(found.advised),
        "fits": fits,
    }
    system = distro.find(host)
    pages = found.advised // PAGE
    argument = f"{found.module}.pages_limit={pages}"
    old = [word for word in (host.text("proc/cmdline") or "").split() if "ttm.pages_limit=" in word]
    change = distro.kernel_arguments(system, [argument], [word for word in old if word != argument])
    raise_it = f"start the kernel with {argument} ({words(found.advised)}); {_TRADE}"
    if found.limit > found.total - LEAST_LEFT:
        left = max(0, found.total - found.limit)
        says = f"ROCm may take {words(found.limit)} of the system's {words(found.total)}, which leaves {words(left)}"
        if found.carved > _SMALL:
            return Finding(
                "warning",
                f"{says}: the limit was not made for a BIOS that keeps {words(found.carved)}",
                f"set the GPU's memory in the BIOS to its least, or remove {old[0] if old else 'the limit'}",
                data=data,
            )
        return Finding("warning", f"{says}: training that fills it stops the machine", raise_it, change, data)
    if found.carved > _SMALL and found.carved < found.limit:
        return Finding(
            "warning",
            f"the {words(found.carved)} that the BIOS cut off lie idle: the kernel uses the larger "
            f"{words(found.limit)} of the system's memory",
            "set the GPU's memory in the BIOS to its least (0.5 GB)",
            data=data,
        )
    if found.carved > _SMALL:
        return Finding(
            "advice",
            f"the BIOS gives the GPU {words(found.carved)} of {words(found.installed)} for good, and leaves the system "
            f"{words(found.total)} for loading, merging and saving{_fit_words(fits)}",
            f"set the GPU's memory in the BIOS to its least (0.5 GB), and {raise_it}",
            change,
            data,
        )
    if found.limit < found.advised * 3 // 4:
        more = [name for name in known.fitting(sizes, found.advised) if name not in fits]
        gain = f", with more also {more[0]}" if more else ""
        return Finding(
            "advice",
            f"ROCm may use {words(found.limit)} of {words(found.installed)}{_fit_words(fits)}{gain}",
            raise_it,
            change,
            data,
        )
    return Finding("ok", f"ROCm may use {words(found.limit)} of {words(found.installed)}{_fit_words(fits)}", data=data)


def settings(host: Host) -> Iterator[Finding]:
    """Arguments that do nothing, or not what they say."""
    if not any(gpus.unified(host, gpu) for gpu in gpus.meant(host)):
        return
    said = [*_command_line(host), *_module_options(host)]
    modules = [name for name in ("ttm", "amdttm") if host.exists(f"sys/module/{name}")]
    limits = {name: value for name, value, _ in said if name in ("ttm.pages_limit", "amdttm.pages_limit")}
    quiet = True
    if "amdttm" in modules and "ttm.pages_limit" in limits and "amdttm.pages_limit" not in limits:
        quiet = False
        place = next(place for name, _, place in said if name == "ttm.pages_limit")
        yield Finding(
            "warning",
            f"ttm.pages_limit ({place}) is not read by this driver, which has a TTM of its own: amdttm",
            f"say amdttm.pages_limit={limits['ttm.pages_limit']} as well",
            distro.kernel_arguments(distro.find(host), [f"amdttm.pages_limit={limits['ttm.pages_limit']}"]),
        )
    if "amdttm.pages_limit" in limits and modules == ["ttm"]:
        quiet = False
        yield Finding(
            "warning",
            "amdttm.pages_limit is set, and the driver that would read it is not loaded",
            f"say ttm.pages_limit={limits['amdttm.pages_limit']} instead",
            distro.kernel_arguments(distro.find(host), [f"ttm.pages_limit={limits['amdttm.pages_limit']}"]),
        )
    for name, value, place in said:
        if name != "amdgpu.gttsize" or number(value) in (None, -1):
            continue
        quiet = False
        megabytes = int(value)
        module = "amdttm" if "amdttm" in modules else "ttm"
        pages = host.number(f"sys/module/{module}/parameters/pages_limit")
        remove = distro.kernel_arguments(distro.find(host), remove=[f"amdgpu.gttsize={value}"])
        if pages is not None and megabytes << 20 > pages * PAGE:
            yield Finding(
                "warning",
                f"amdgpu.gttsize promises {words(megabytes << 20)}, and {module}.pages_limit allows "
                f"{words(pages * PAGE)}; what lies between cannot be had",
                "remove amdgpu.gttsize and set the limit alone",
                remove if place == _CMDLINE else (),
                {"gttsize_gib": gib(megabytes << 20), "limit_gib": gib(pages * PAGE)},
            )
        else:
            yield Finding(
                "advice",
                f"amdgpu.gttsize ({place}) is deprecated, and {module}.pages_limit alone does it",
                "remove it",
                remove if place == _CMDLINE else (),
            )
    if quiet:
        yield Finding("ok", "no argument contradicts another")


_CMDLINE = "the kernel's command line"


def _command_line(host: Host) -> Iterator[tuple[str, str, str]]:
    for word in (host.text("proc/cmdline") or "").split():
        name, found, value = word.partition("=")
        if found and "." in name:
            yield name.replace("-", "_"), value, _CMDLINE


def _module_options(host: Host) -> Iterator[tuple[str, str, str]]:
    for path in (*host.glob("etc/modprobe.d/*.conf"), *host.glob("usr/lib/modprobe.d/*.conf")):
        for line in (host.text(path) or "").splitlines():
            words_ = line.split("#")[0].split()
            if len(words_) > 2 and words_[0] == "options":
                for word in words_[2:]:
                    name, found, value = word.partition("=")
                    if found:
                        yield f"{words_[1]}.{name}", value, f"/{path}"


def _fit_words(fits: list[str]) -> str:
    return f"; what fits: {', '.join(fits)}" if fits else "; none of the measured recipes fits"


CHECKS = (
    Check(
        "memory",
        "By default ROCm may use one half of the memory; what the BIOS cuts off is lost to the system, and a limit "
        "that leaves the system nothing hangs it.",
        "https://rocm.docs.amd.com/en/latest/reference/system-optimization/rdna3-5.html, "
        "https://github.com/ROCm/legacy-rocm-build/issues/5595",
        ("ok", "advice", "warning", "unknown"),
        memory,
    ),
    Check(
        "memory-settings",
        "Guides name several arguments for one limit; some are deprecated, and some are not read by the driver in use.",
        "https://github.com/ROCm/legacy-rocm-build/issues/5562, https://github.com/noamsto/nix-amd-ai/pull/96",
        ("ok", "advice", "warning"),
        settings,
    ),
)
