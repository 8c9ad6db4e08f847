"""ROCm's libraries as the stubs have them: names, the functions that others ask them for, and where their code is."""

from __future__ import annotations

CORE = {
    "libamdhip64.so.7": (
        "__hipPopCallConfiguration", "__hipPushCallConfiguration", "__hipRegisterFatBinary", "__hipRegisterFunction",
        "__hipUnregisterFatBinary", "hipDeviceGetAttribute", "hipGetDeviceCount", "hipGetErrorString",
        "hipGetLastError", "hipInit", "hipLaunchKernel", "hipMallocManaged", "hipMemPrefetchAsync", "hipMemset",
        "hipPeekAtLastError", "hipRuntimeGetVersion",
    ),
    "libamd_comgr.so.3": ("amd_comgr_get_version",),
    "libhiprtc.so.7": ("hiprtcCompileProgram", "hiprtcCreateProgram"),
    "libhsa-runtime64.so.1": ("hsa_init",),
    "libroctx64.so.4": ("roctxMarkA",),
}  # fmt: skip
# soname → (file in kpack archives, archive, functions, needed)
LIBRARIES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "librccl.so.1": ("lib/librccl.so.1.0", "rccl_lib", ("ncclAllReduce", "ncclGetVersion"), ("libamdhip64.so.7",)),
    "librocblas.so.5": ("lib/librocblas.so.5", "blas_lib", ("rocblas_create_handle",), ("libamdhip64.so.7",)),
    "libhipblas.so.3": (
        "", "", ("hipblasCreate", "hipblasGemmEx", "hipblasGemmStridedBatchedEx"), ("librocblas.so.5",),
    ),
    "libhipblaslt.so.1": (
        "lib/libhipblaslt.so.1", "blas_lib",
        tuple(f"hipblasLt{name}" for name in (
            "Create", "Matmul", "MatmulAlgoGetHeuristic", "MatmulDescCreate", "MatmulDescDestroy",
            "MatmulDescSetAttribute", "MatmulPreferenceCreate", "MatmulPreferenceSetAttribute", "MatrixLayoutCreate",
            "MatrixLayoutDestroy",
        )),
        ("libamdhip64.so.7",),
    ),
    "librocrand.so.1": ("lib/librocrand.so.1", "rand_lib", ("rocrand_create_generator",), ("libamdhip64.so.7",)),
    "libhiprand.so.1": ("", "", ("hiprandCreateGenerator",), ("librocrand.so.1",)),
    "libhipfft.so.0": ("", "", ("hipfftCreate",), ()),
    "libhipsparse.so.4": ("", "", ("hipsparseCreate",), ()),
    "libhipsolver.so.1": ("", "", ("hipsolverCreate",), ()),
    "libMIOpen.so.1": ("", "", ("miopenCreate",), ("libamdhip64.so.7",)),
}  # fmt: skip
PRELOADED = ("amd_comgr", "amdhip64", "roctx64", "hiprtc", "hipblas", "hipfft", "hiprand", "hipsparse", "hipsolver",
              "rccl", "hipblaslt", "miopen")  # fmt: skip
