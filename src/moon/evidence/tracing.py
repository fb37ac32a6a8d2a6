"""Find the Linear layers that compute the output of a model, by tracing its forward pass symbolically (torch.fx)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import fx, nn

# The layers that a tensor comes from: names of Linear layers, None for anything else.
Sources = frozenset[str | None]
# What a module returns or an operation takes: a tensor, or several by index, key or name. These are functions, so that
# only what leads to the output is evaluated.
Value = Sources | dict[Any, Callable[[], Any]]

_NOTHING: Sources = frozenset()
_OTHER: Sources = frozenset([None])
_INPUT: Sources = frozenset([""])  # the input of a module
# What may follow the classifier: operations that change the shape, the dtype or the scale of the logits.
_OF_ONE = {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "contiguous",
    "clone", "detach", "to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda", "dropout",
    "softmax", "log_softmax", "neg",
}  # fmt: skip
_OF_TWO = {
    "add", "sub", "mul", "div", "truediv", "iadd", "isub", "imul", "itruediv", "add_", "sub_", "mul_", "div_",
}  # fmt: skip
_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Softmax, nn.LogSoftmax, nn.modules.dropout._DropoutNd)
_FACTS = {"shape", "dtype", "device", "ndim", "size", "dim", "numel"}  # of a tensor; they are not its values


def output_layers(model: nn.Module) -> list[str] | None:
    """Find the Linear layers whose outputs are the outputs of a model, by name.

    Only operations that change the shape, the dtype or the scale may follow them. If the model returns an object or a
    mapping with `logits`, only these count. Neither the model nor the random state is changed. The list is empty if the
    output comes from anything else, and None if the model cannot be traced.
    """
    weights = {id(weight): weight for weight in model.parameters()}
    devices = {weight.device for weight in weights.values() if weight.is_cuda}
    try:
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices):
            # A copy, with the same weights: the forward pass may assign to attributes of the model.
            value = _Forward(deepcopy(model, weights), "").output()
            while isinstance(value, dict) and "logits" in value:
                value = value["logits"]()
            tensors = list(_tensors(value))
    except Exception:  # code that needs values, not symbols, may raise anything
        return None
    if len(tensors) > 1:  # not all outputs need be logits
        tensors = [tensor for tensor in tensors if not tensor & (_OTHER | _INPUT)]
    found = _NOTHING.union(*tensors)
    return [] if found & (_OTHER | _INPUT) else sorted(name for name in found if name)


class _Tracer(fx.Tracer):
    """Traces the code of one module, but not that of the modules that it calls.

    Its first input and those without a default are symbols.
    """

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        _, *parameters = signature(root_fn).parameters.values()  # the first is self
        args, kwargs = [], {}
        for index, parameter in enumerate(parameters):
            is_needed = parameter.default is parameter.empty or index == 0
            if is_needed and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                symbol = self.create_proxy("placeholder", parameter.name, (), {})
                if parameter.kind is parameter.KEYWORD_ONLY:
                    kwargs[parameter.name] = symbol
                else:
                    args.append(symbol)
        return partial(root_fn, **kwargs), [self.root, *args]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_arg(self, a: Any) -> Any:
        try:
            return super().create_arg(a)
        except NotImplementedError:  # an object of a class that the tracer does not know
            return {"logits": super().create_arg(a.logits)}


class _Forward:
    """The traced forward pass of a module; `prefix` precedes the names of its layers."""

    def __init__(self, module: nn.Module, prefix: str) -> None:
        if "forward" in vars(module):  # the tracer would use the one of the class
            raise ValueError("the forward pass was replaced")
        self.module, self.prefix = module, prefix
        self.graph = _Tracer().trace(module)

    def output(self) -> Value:
        """What the module returns."""
        return self._value(list(self.graph.nodes)[-1].args[0])

    def _value(self, argument: Any) -> Value:
        """Where a value comes from."""
        if isinstance(argument, (tuple, list)):
            argument = dict(enumerate(argument))
        if isinstance(argument, Mapping):
            return {key: partial(self._value, part) for key, part in argument.items()}
        if not isinstance(argument, fx.Node) or argument.op == "get_attr":  # a constant or a parameter
            return _NOTHING
        if argument.op == "placeholder":
            return _INPUT
        return self._module(argument) if argument.op == "call_module" else self._operation(argument)

    def _operation(self, node: fx.Node) -> Value:
        """What a function or method returns."""
        name = _name(node)
        if _is_constant(node):
            return _NOTHING
        if name in ("getattr", "getitem"):
            whole, key = self._value(node.args[0]), node.args[1]
            if not isinstance(whole, dict):
                return whole
            if isinstance(key, int) and key not in whole:  # the index of a field
                key = list(whole)[key]
            return whole[key]() if key in whole else _OTHER
        if isinstance(node.target, type):  # an object that holds the outputs
            names = getattr(node.target, "_fields", ())
            return self._value(dict(zip(names, node.args, strict=False)) | node.kwargs)
        if name in _OF_ONE:
            return self._value(node.args[0])
        return self._inputs(node) if name in _OF_TWO else _OTHER

    def _module(self, node: fx.Node) -> Value:
        """What a module returns."""
        name = str(node.target)
        module = self.module.get_submodule(name)
        if isinstance(module, nn.Linear):
            return frozenset([self.prefix + name])
        if isinstance(module, _MODULES):
            return self._inputs(node)
        if type(module).__module__.startswith("torch.nn.") and not isinstance(module, nn.Sequential):
            return _OTHER
        return _replaced(_Forward(module, f"{self.prefix}{name}.").output(), lambda: self._inputs(node))

    def _inputs(self, node: fx.Node) -> Sources:
        """Where everything comes from that a node takes."""
        return _NOTHING.union(*_tensors(self._value([*node.args, *node.kwargs.values()])))


def _tensors(value: Value) -> Iterator[Sources]:
    """The tensors of a value, without constants."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part())
    elif value:
        yield value


def _name(node: fx.Node) -> str:
    """The name of a function or method."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_constant(node: fx.Node) -> bool:
    """Whether something depends on parameters, constants and the shapes of tensors only."""
    if node.op in ("placeholder", "call_module"):
        return False
    is_fact = _name(node) in _FACTS or (_name(node) == "getattr" and node.args[1] in _FACTS)
    return is_fact or all(map(_is_constant, node.all_input_nodes))


def _replaced(value: Value, inputs: Callable[[], Sources]) -> Value:
    """A value with the inputs of a module in place of the symbol for them."""
    if isinstance(value, dict):
        return {key: lambda part=part: _replaced(part(), inputs) for key, part in value.items()}
    return value - _INPUT | inputs() if value & _INPUT else value
