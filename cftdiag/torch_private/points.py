"""What is replaced while a graph is lowered for a device that is not there."""

from __future__ import annotations

from cftdiag.torch_private.names import Name, Part

_GPU: Part = "codegen for a GPU"
_CPU: Part = "codegen for the CPU"
_LOWER = "Inductor cannot lower for an absent device (--target)"

COMPILE_TO_MODULE = Name(
    "torch._inductor.graph:GraphLowering._compile_to_module", _CPU, _LOWER, alias="point", leading=("self",)
)
GET_SYSTEM = Name(
    "torch._inductor.codecache:CacheBase.get_system",
    _GPU,
    "lowering for a GPU takes longer: Triton is hashed for caches that are off",
    needed=False,
)

CHECK_BUILD = Name("torch._inductor.cpu_vec_isa:VecISA.check_build", _CPU, _LOWER, leading=("self", "code"))
CPP_BUILD = Name("torch._inductor.cpp_builder:CppBuilder.build", _CPU, _LOWER)
CPP_COMPILER = Name("torch._inductor.cpp_builder:get_cpp_compiler", _CPU, _LOWER)

AVOID_DEVICE_INIT = Name("torch._subclasses.fake_tensor:FakeTensorMode.avoid_device_init", _GPU, _LOWER)
INIT_GPU_CONTEXT = Name(
    "torch._subclasses.fake_tensor:init_gpu_context",
    _GPU,
    "nothing: only torch 2.11 puts a tensor on a device that says it is available",
    needed=False,
)
DRAM_GBPS = Name("torch._inductor.utils:get_gpu_dram_gbps", _GPU, _LOWER)
CONSTANT_FOLDER_RUN = Name(
    "torch._inductor.constant_folding:ConstantFolder.run", _GPU, _LOWER, leading=("self",)
)
CONSTANT_NAME = Name(
    "torch._inductor.graph:GraphLowering.constant_name",
    _GPU,
    _LOWER,
    leading=("self", "name", "device_override"),
)
SET_DRIVER = Name("torch._inductor.runtime.triton_helpers:set_driver_to_gpu", _GPU, _LOWER)
SYSTEM_INFO_COMMENT = Name(
    "torch._dynamo.repro.after_aot:_cuda_system_info_comment",
    _GPU,
    "lowering for a GPU asks nvcc for its version, once a graph",
    needed=False,
)

CUDA_VERSION = Name("torch.version:cuda", _GPU, _LOWER, alias="cuda_version")


def of_cuda(name: str) -> Name:
    """A function of ``torch.cuda`` that is asked while tracing and lowering, where this torch has it."""
    return Name(f"torch.cuda:{name}", _GPU, "nothing, where torch does not ask for it", needed=False)


#: The private ones of them.
CUDA_ANSWERS = tuple(
    of_cuda(name)
    for name in ("_is_compiled", "_lazy_init", "_exchange_device", "_maybe_exchange_device", "_get_generator")
)

NAMES = (
    COMPILE_TO_MODULE, GET_SYSTEM, CHECK_BUILD, CPP_BUILD, CPP_COMPILER, AVOID_DEVICE_INIT, INIT_GPU_CONTEXT,
    DRAM_GBPS, CONSTANT_FOLDER_RUN, CONSTANT_NAME, SET_DRIVER, SYSTEM_INFO_COMMENT, CUDA_VERSION, *CUDA_ANSWERS,
)  # fmt: skip

#: Answers that hold only while nothing is built: `functools.cache`d functions of Inductor's CPU backend.
CPU_CACHES = (
    "torch._inductor.cpu_vec_isa:valid_vec_isa_list",
    *(
        f"torch._inductor.cpu_vec_isa:{isa}.__bool__"
        for isa in ("VecISA", "VecAVX512", "VecAVX512VNNI", "VecAMX", "VecAVX2", "VecNEON", "VecSVE")
    ),
    "torch._inductor.cpp_builder:is_gcc",
    "torch._inductor.cpp_builder:is_clang",
    "torch._inductor.codecache:CacheBase.get_system",
)

#: Answers about the device that torch remembers.
CUDA_CACHES = (
    "torch.utils._triton:has_triton",
    "torch.utils._triton:triton_backend",
    "torch.utils._triton:triton_hash_with_backend",
    "torch.utils._triton:has_triton_tma",
    "torch.utils._triton:has_triton_tma_device",
    "torch.utils._triton:has_triton_stable_tma_api",
    "torch.utils._triton:_device_supports_tma",
    "torch.utils._triton:has_triton_tensor_descriptor_host_tma",
    "torch.utils._triton:has_triton_experimental_host_tma",
    "torch.utils._triton:has_datacenter_blackwell_tma_device",
    "torch._inductor.utils:get_gpu_dram_gbps",
    "torch._inductor.utils:is_big_gpu",
    "torch._inductor.utils:get_max_num_sms",
    "torch._inductor.utils:get_gpu_shared_memory",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.codecache:CacheBase.get_local_cache_path",
)
