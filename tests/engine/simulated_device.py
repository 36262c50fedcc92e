"""A simulated accelerator: what it computes is computed on the CPU, but it refuses what real accelerators refuse.

It is a device of torch's own kind (PrivateUse1), not a subclass of Tensor, so torch itself refuses `numpy()` and many
mixtures of devices. Each of its storages has an address that nobody can read and an ordinary storage beside it, where
the numbers are. One kernel serves all operations that torch does not take apart: it checks where the arguments are,
computes with the ordinary storages and gives the result a storage on the device.

Its rules are the stricter of CUDA's and those of a Mac's MPS:
- All tensors of an operation are on the device. A CPU tensor without dimensions may be an argument of an elementwise
  operation. It may not be an index, though CUDA copies it: that copy makes the host wait.
- Only `copy_` and what is made of it (`to`, `cpu`) crosses between host and device, and it is waited for.
- Generators are of the device; draws without one follow `torch.manual_seed` as on the CPU.
- There is no double precision, and nothing but strided tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "simulated"
UNREADABLE = 1 << 62  # added to addresses: reading there ends the process
CPU = torch.device("cpu")
ON_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


@cache
def simulated_device() -> torch.device:
    """The device, registered with torch at the first call; for the life of the process.

    It has no index, as a user's `cuda` has none, though its tensors say `simulated:0`.
    """
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(_compute, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("empty.memory_format", _empty, "PrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    aten.impl("copy_", _copy, "PrivateUse1")
    aten.impl("resize_", _resize, "PrivateUse1")
    aten.impl("convolution_overrideable", _convolve, "PrivateUse1")  # what torch leaves to accelerators
    aten.impl("convolution_backward_overrideable", _convolve_backward, "PrivateUse1")
    whole = partial(_compute, torch.ops.aten.mse_loss.default)  # taken apart, its output is resized with a warning
    aten.impl("mse_loss", whole, "PrivateUse1")
    aten.impl("set_.source_Storage_storage_offset", _set, "PrivateUse1")
    _LIBRARIES.extend((fallback, aten))
    return torch.device(NAME)


def is_supported() -> bool:
    """Whether this version of torch takes devices that are written in Python."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


class _Module:
    """What torch asks of a device; it is found as `torch.simulated`."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Its draws are the CPU's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]  # asked also where mixed precision is switched off


_LIBRARIES: list[torch.library.Library] = []  # kernels go when these do


def on_host(tensor: Tensor) -> Tensor:
    """The ordinary tensor of the same numbers in the same memory, for kernels."""
    host = torch.empty(0, dtype=tensor.dtype)
    storage = tensor.untyped_storage().of_host  # type: ignore[attr-defined]
    return host.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _storage_for(host: Tensor) -> torch.UntypedStorage:
    if host.dtype == torch.float64:
        raise TypeError(f"{NAME} has no double precision, as MPS has none")
    memory = host.untyped_storage()
    address = memory.data_ptr() + UNREADABLE if memory.nbytes() else 0
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device(NAME, 0), memory.nbytes())
    storage.of_host = memory  # lives as long as the storage does, in whatever tensors
    storage.__deepcopy__ = partial(_copy_storage, memory)
    return storage


def _copy_storage(memory: torch.UntypedStorage, memo: dict[Any, Any]) -> torch.UntypedStorage:
    """What `deepcopy` makes of a storage; tensors that share one share its copy."""
    known = memo.setdefault(NAME, {})
    if memory._cdata not in known:
        known[memory._cdata] = _storage_for(torch.empty(0, dtype=torch.uint8).set_(memory.clone()))
    return known[memory._cdata]


def _on_device(host: Tensor) -> Tensor:
    """A tensor of the device for one of the host."""
    tensor = torch._C._acc.create_empty_tensor((0,), host.dtype)
    return _set(tensor, _storage_for(host), host.storage_offset(), host.shape, host.stride())


def _view(base: Tensor, host: Tensor) -> Tensor:
    """A tensor of the device in the storage of another."""
    where = host.shape, host.stride(), host.storage_offset()
    if host.dtype != base.dtype:
        raise NotImplementedError(f"views of {base.dtype} as {host.dtype} are not simulated")
    return torch.ops.aten.as_strided.default.redispatch(ON_CPU_KERNEL, base, *where)  # the CPU's reads no numbers


def _set(tensor: Tensor, storage: Any, offset: int, size: Any, stride: Any = ()) -> Tensor:
    if storage.device.type != NAME:
        raise RuntimeError(f"a tensor of {NAME} cannot take a storage of {storage.device}")
    kernel = torch.ops.aten.set_.source_Storage_storage_offset  # the CPU's reads no numbers
    return kernel.redispatch(ON_CPU_KERNEL, tensor, storage, offset, size, stride)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> Tensor:
    return _on_device(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return _on_device(torch.empty_strided(size, stride, dtype=dtype))


def _resize(tensor: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    host = on_host(tensor)
    return _adopt(tensor, host.resize_(size, memory_format=memory_format or torch.contiguous_format))


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The one crossing between host and device."""
    if non_blocking:
        raise RuntimeError(f"a copy from {source.device} to {target.device} that is not waited for is not safe here")
    target_host, source_host = (on_host(each) if _is_ours(each) else each for each in (target, source))
    target_host.copy_(source_host)
    return target


def _adopt(tensor: Tensor, host: Tensor) -> Tensor:
    """Follow a tensor of the host that an operation has resized."""
    if tensor.shape != host.shape or tensor.stride() != host.stride():
        _set(tensor, _storage_for(host), host.storage_offset(), host.shape, host.stride())
    return tensor


def _is_ours(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _compute(operation: Any, *given: Any, **named: Any) -> Any:
    """Any operation: check where its arguments are, compute on the host, and give the results to the device."""
    schema = operation._schema
    arguments = {argument.name: value for argument, value in zip(schema.arguments, given, strict=False)} | named
    written = {argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write}
    for name, value in arguments.items():
        _check(operation, name, value, name in written)
    ours: list[tuple[Tensor, Tensor]] = []

    def lower(value: Any) -> Any:
        if _is_ours(value):
            ours.append((value, on_host(value)))
            return ours[-1][1]
        if isinstance(value, torch.device):
            return CPU
        return value

    def lift(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        memory = value.untyped_storage()
        for tensor, host in ours:
            if value is host:  # written in place
                return tensor
            if memory.nbytes() and memory.data_ptr() == host.untyped_storage().data_ptr():
                return _view(tensor, value)
        return _on_device(value)

    given = tuple(map(_as_declared, schema.arguments, given))
    lowered = [_each(lower, value) for value in given], {name: _each(lower, value) for name, value in named.items()}
    with torch._C._AutoDispatchBelowAutograd():
        results = operation(*lowered[0], **lowered[1])
    for tensor, host in ours:
        _adopt(tensor, host)
    return _each(lift, results)


def _as_declared(argument: Any, value: Any) -> Any:
    """Torch hands tensors that it made of Python's numbers over as numbers; kernels want them as tensors."""
    is_number = isinstance(value, int | float) and argument.type.kind() == "TensorType"
    return torch.tensor(value) if is_number else value


def _convolve(*given: Any) -> Tensor:
    return _compute(torch.ops.aten.convolution.default, *given)


def _convolve_backward(gradient: Tensor, x: Tensor, weight: Tensor, *given: Any) -> Any:
    bias_sizes = [gradient.shape[1]]
    return _compute(torch.ops.aten.convolution_backward.default, gradient, x, weight, bias_sizes, *given)


def _check(operation: Any, name: str, value: Any, is_written: bool) -> None:
    """Refuse what the rules above refuse."""
    scalars = torch.Tag.pointwise in operation.tags
    in_list = isinstance(value, list | tuple)
    for each in value if in_list else [value]:
        if isinstance(each, torch.Generator) and each.device.type != NAME:
            raise RuntimeError(f"expected a generator of {NAME} for {operation}, but found one of {each.device}")
        if not isinstance(each, Tensor) or _is_ours(each):
            continue
        if is_written or in_list or each.dim() or not scalars:
            raise RuntimeError(
                f"expected all tensors to be on the same device, but {operation} got {name} of shape "
                f"{tuple(each.shape)} on {each.device} with others on {NAME}"
            )


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(function(each) for each in value)
    return function(value)
