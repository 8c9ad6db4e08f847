"""Write function_set.h from a set of functions: which reductions a library leaves out, as RCCL's sources read it.

    function_set.py functions/training.txt > src/include/function_set.h

Each line of a set names a collective, an operation and types that are in it; `CollNet` alone puts that algorithm in.
"""

import sys
from pathlib import Path

COLLECTIVES = ("Reduce", "ReduceScatter", "AllReduce")
OPERATIONS = ("Sum", "Prod", "Max", "Min", "PreMulSum", "SumPostDiv")
# what NCCL calls a type → what the sources call it
TYPES = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "bfloat16": "rccl_bfloat16",
}


class Fault(Exception):
    """A line that says nothing known, as one sentence."""


def chosen(word, known):
    if word == "*":
        return list(known)
    if word not in known:
        raise Fault(f"'{word}' is none of {', '.join(known)}")
    return [word]


def read(path):
    """The (collective, operation, type) that are in the set, and whether CollNet is."""
    held, collnet = set(), False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        try:
            if words == ["CollNet"]:
                collnet = True
            elif words:
                collective, operation, *types = [*words, ""] if len(words) == 1 else words
                for one in chosen(collective, COLLECTIVES):
                    for two in chosen(operation, OPERATIONS):
                        held |= {(one, two, three) for word in types for three in chosen(word, TYPES)}
                if not types:
                    raise Fault(f"{collective} {operation} names no type")
        except Fault as fault:
            raise Fault(f"{path}:{number}: {fault}") from None
    return held, collnet


def header(path):
    held, collnet = read(path)
    yield f"// Made of {path.name} by function_set.py: 1 is left out."
    yield f'#define RCCL_FUNCTION_SET "{path.stem}"'
    yield f"#define RCCL_LEFT_OUT_CollNet {int(not collnet)}"
    for collective in COLLECTIVES:
        for operation in OPERATIONS:
            for name, type_ in TYPES.items():
                left_out = (collective, operation, name) not in held
                yield f"#define RCCL_LEFT_OUT_{collective}_{operation}_{type_} {int(left_out)}"


if __name__ == "__main__":
    try:
        print("\n".join(header(Path(sys.argv[1]))))
    except Fault as fault:
        sys.exit(str(fault))
