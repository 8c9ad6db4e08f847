"""What is wrong with a Python requirement or a range of versions, in words."""

from __future__ import annotations


def requirement_fault(text: str) -> str:
    """What is wrong with a Python requirement, or an empty string."""
    from packaging.requirements import InvalidRequirement, Requirement

    if text.split(";")[0].rstrip(" )").endswith(("=", "<", ">", "~", "!")):
        return f"the requirement '{text}' names no version"
    try:
        Requirement(text)
    except InvalidRequirement as error:
        return f"'{text}' is not a Python requirement ({_reason(error)})"
    return ""


def bound_fault(text: str) -> str:
    """Why a Python requirement does not say which versions it means, or an empty string."""
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    if requirement.url:
        return f"'{text}' names an address, and a version is wanted"
    return "" if requirement.specifier else f"'{text}' says no version and no range of versions"


def range_fault(text: str) -> str:
    """What is wrong with a range of versions such as "<2.15", or an empty string."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        ranges = SpecifierSet(text)
    except InvalidSpecifier:
        return f"'{text}' is no range of versions"
    return "" if len(ranges) else "the range of versions is empty"


def _reason(error: Exception) -> str:
    reason = str(error).splitlines()[0].rstrip(".")
    return reason[:1].lower() + reason[1:]
