#!/usr/bin/env python3
"""The system's compiler makes what Triton and torch.compile ask of it when a program runs, for a user without a home.

Triton compiles a C module with Python's headers for each kernel's launcher, torch.compile C++ for the CPU's part.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

MODULE = """
#include <Python.h>
#include <dlfcn.h>
static PyObject *answer(PyObject *self, PyObject *none) {
  return PyLong_FromLong(dlsym(RTLD_DEFAULT, "malloc") ? 42 : 0);
}
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "made_c", NULL, -1, methods};
PyMODINIT_FUNC PyInit_made_c(void) { return PyModule_Create(&module); }
"""
KERNEL = """
#include <cmath>
#include <vector>
extern "C" int sum(int count) {
  std::vector<double> values(count, 0.5);
  double total = 0;
#pragma omp parallel for reduction(+ : total)
  for (int i = 0; i < count; ++i) total += std::sqrt(values[i] * values[i]);
  return static_cast<int>(total);
}
"""

packages = {line.split("=")[0] for line in Path(os.environ["STRIX_SMOKE"], "locked/apt.txt").read_text().split()}
if "gcc" not in packages:
    print("no program of this channel compiles anything when it runs, and there is no compiler")
    sys.exit()


def run(*command: str) -> str:
    done = subprocess.run(
        ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "env", "HOME=/nonexistent", *command],
        capture_output=True,
        text=True,
        cwd=work,
    )
    if done.returncode:
        sys.exit(f"compiler: {command[0]} ends with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout.strip()


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    work.chmod(0o777)
    (work / "made_c.c").write_text(MODULE)
    (work / "sum.cpp").write_text(KERNEL)
    include = sysconfig.get_path("include")
    run("cc", "-O3", "-shared", "-fPIC", f"-I{include}", "made_c.c", "-o", "made_c.so", "-ldl", "-lpthread")
    run("c++", "-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "sum.cpp", "-o", "libsum.so")
    script = "import ctypes, made_c; print(made_c.answer(), ctypes.CDLL('./libsum.so').sum(1000))"
    said = run(sys.executable, "-c", f"import sys; sys.path.insert(0, '.'); {script}")
    if said != "42 500":
        sys.exit(f"compiler: what it compiled says '{said}' and not '42 500'")
    version = run("cc", "--version").splitlines()[0]
print(f"{version}: a module with Python's headers and a parallel C++ library compile, link and load")
