"""An independent DeepSeek-V4 forward pass in NumPy: the judge of the C++ engine.

Written from the specification (architecture and quantisation), never from our C++. It computes one sequence from
position 0 in one go, so that every position is a function of its prefix alone. So prefill, chunked prefill and token-by-token decoding
must all give these numbers. Every rounding point and every classic mistake is an `Options` field.
"""
