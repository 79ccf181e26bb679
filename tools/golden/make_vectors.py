"""Writes tests/golden/vectors.json: the test vectors the specification prints, each checked against the oracle first."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import encode  # noqa: E402
from oracle import formats  # noqa: E402
from oracle.config import yarn_frequencies  # noqa: E402
from oracle.hyper_connection import split  # noqa: E402
from oracle.numerics import Numerics  # noqa: E402
from oracle.options import Options  # noqa: E402
from random_model import Shape  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def printed_vectors() -> dict:
    """The vectors the specification prints, typed in from it; each is checked here against the oracle before it is written."""
    k = np.arange(24)
    mixed, base = ((7 * k % 11) - 5) / 4, ((3 * k % 7) - 3) / 8
    expected = {
        "pre": [.268942, .562178, .531210, .622460], "post": [1.302710, .403626, 1.670967, .814667],
        "comb": [[.104914, .581231, .196866, .116988], [.249115, .005641, .467465, .277779], [.176965, .408701, .332071, .082262],
                 [.469005, .004427, .003597, .522970]]}
    num = Numerics(Options.make(plain=True))
    for name, value in zip(("pre", "post", "comb"), split(num, mixed[None], np.array([.5, 1.5, 2.]), base, 4, 20, 1e-6), strict=False):
        np.testing.assert_allclose(value[0], expected[name], atol=1e-6)
    yarn = [1.0, .68765602, .47287080, .32517246, .22360680, .15376456, .10573713, .072710772, .05, .034382801, .023643540, .016258623,
            .011180340, .0076882281, .0052868563, .0036355386, .0022656250, .0013968013, 8.4968973e-4, 5.0808196e-4, 2.9697778e-4,
            1.6817999e-4, 9.0867843e-5, 4.5444232e-5, 1.9531250e-5, 5.3723127e-6, 3.6943032e-6, 2.5404098e-6, 1.7469281e-6,
            1.2012856e-6, 8.2607130e-7, 5.6805290e-7]
    np.testing.assert_allclose(yarn_frequencies(64, 160000.0, Shape([0]).yarn), yarn, rtol=5e-8)
    block = [0, .1, -.2, .3, -.4, .5, -.6, .7, -.8, .9, -1, 1.1, -1.2, 1.3, -1.4, 1.5]
    nvfp4 = []
    for factor, scale, byte, packed, dequantised in (
            (1.0, 1.0, 0x28, "102A4B5C6D6E7E7F", [0, .125, -.25, .25, -.375, .5, -.5, .75, -.75, 1, -1, 1, -1, 1.5, -1.5, 1.5]),
            (1.0, 1.5 / 2688, 0x7E, "102A4B5C6D6E7E7F", [0, .125, -.25, .25, -.375, .5, -.5, .75, -.75, 1, -1, 1, -1, 1.5, -1.5, 1.5]),
            (1.07, 1.0, 0x29, "102A4B5C5D6E6E7F", None)):
        x = (np.array([block]) * factor).astype(np.float32)
        parts = encode.nvfp4(x, tensor_scale=np.float32(scale))
        got = parts["weight"][1].tobytes().hex().upper()
        if got != packed or parts["weight_scale"][1].item() != byte:
            raise AssertionError(f"NVFP4 vector x{factor} g={scale}: got {got} {parts['weight_scale'][1].item():#x}, specification {packed} {byte:#x}")
        nvfp4.append({"x": x[0].tolist(), "tensor_scale": scale, "scale_byte": byte, "packed_hex": packed, "dequantised": dequantised})
    ties = [[.25, 0], [.75, 1], [1.25, 1], [1.75, 2], [2.5, 2], [3.5, 4], [5, 4], [7, 6]]
    for x, want in ties:
        if formats.round_e2m1(np.clip(np.array([x]), -6, 6))[0] != want:
            raise AssertionError(f"e2m1 of {x}")
    return {
        "hyper_connection_split": {"mixed": mixed.tolist(), "base": base.tolist(), "scale": [.5, 1.5, 2.], "eps": 1e-6, "iterations": 20,
                                   "tolerance": 1e-6, **expected},
        "yarn_frequencies": {"rope_dim": 64, "theta": 160000, "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                             "beta_slow": 1, "relative_tolerance": 5e-8, "values": yarn},
        "nvfp4_blocks": nvfp4,
        "e2m1_ties": ties,
        "e2m1_to_e4m3_bytes": [0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C],
        "mxfp4_to_nvfp4": {"e8m0": [120, 123], "tensor_scale": 2.0**-12, "block_scale_bytes": [0x60, 0x78]},
        "swizzled_scale_offsets": {"columns": 448, "offsets": [[1, 0, 16], [32, 0, 4], [0, 4, 512], [127, 3, 511], [128, 0, 57344],
                                                               [3071, 447, 1376255]]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/golden/vectors.json")
    args = parser.parse_args()
    args.out.write_text(json.dumps(printed_vectors(), indent=1) + "\n")


if __name__ == "__main__":
    main()
