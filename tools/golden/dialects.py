"""The release's tensor names to the other dialects, for writing."""

import re

from oracle.names import EXPERT, GLOBAL, LAYER

_TO_TRANSFORMERS = {official: name for name, official in reversed(LAYER.items()) if name != "attn.norm" and ".scorer." not in name}
_GLOBAL = {official: name for name, official in GLOBAL.items()}
_EXPERT = {official: name for name, official in EXPERT.items()}


def transformers(name: str) -> str:
    """Module names of transformers, with the `model.` prefix."""
    scope = re.match(r"(layers\.\d+|mtp\.\d+)\.", name)
    if not scope:
        return "lm_head" if name == "head" else f"model.{_GLOBAL.get(name, name)}"
    rest = name[scope.end():]
    expert = re.fullmatch(r"ffn\.experts\.(\d+)\.(w\d)", rest)
    inner = f"mlp.experts.{expert[1]}.{_EXPERT[expert[2]]}" if expert else _TO_TRANSFORMERS[rest]
    return f"model.{scope[0]}{inner}"


def save_pretrained(name: str) -> str:
    """The mixture that transformers' save_pretrained writes."""
    if name == "head":
        return "head"
    if not name.startswith("layers."):
        return f"model.{_GLOBAL.get(name, name)}"
    return "model." + re.sub(r"\.attn\.kv_norm$", ".attn.norm", name)


def release(name: str) -> str:
    return name


DIALECTS = {"release": release, "transformers": transformers, "save_pretrained": save_pretrained}
