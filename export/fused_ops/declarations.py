"""Functions of the domain `translate_trt`: the places where a library of kernels may take over.

A function's body is written with standard operators and ONNX Runtime's own, so that a graph that
calls it runs anywhere: ONNX Runtime puts bodies in place of calls before it optimizes anything.
Where a kernel is registered under a function's name it calls the kernel instead. Names, inputs and
outputs are therefore an interface with what is compiled elsewhere, and bodies say what is to be
computed.

Weights of products in 8 bits are blocked, [O' / 16, I / 4, 16, 4] for W [I, O'] with O' a multiple
of 16: the order in which processors read them that multiply four neighbouring bytes at a time, for
16 columns at once. Bodies bring them back to [I, O'], which ONNX Runtime does once, at load.

Weights of other products are in panels, [O' / 64, I, 64] with O' a multiple of 64: 64 columns are
what a processor multiplies at a time, and stand together from the first row to the last.

Bodies are in ONNX's text format. Letters as in runtime/bundle/contract.py; I and O are the rows and
columns of a matrix, O' is O filled up, C a number of candidates, V the size of the vocabulary, and
... are any leading axes.
"""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

DOMAIN = "translate_trt"
VERSION = 1

#: What a step with a shortlist calls from the first, before any pass.
LISTED = "ListedCandidates"

#: How names of functions begin that give candidates of logits with a bias.
BIASED = "Biased"

#: Of the blocks that weights are stored in.
BLOCK_COLUMNS, BLOCK_ROWS = 16, 4
PANEL_COLUMNS = 64

#: The largest number of binary16.
MOST_HALF = 65504.0

# x [..., I] -> in 8 bits, the scales of its rows [..., 1], its zero point []; dynamic_int8 has why.
# QuantizeLinear wants a zero point for every row: the scales in 8 bits are it, in steps so large
# that each scale is zero steps. That is one operator, where Shape and Expand are two.
_SIGNED_ROWS = """
    magnitude = Abs(x)
    largest = ReduceMax <keepdims = 1> (magnitude, last_axis)
    step = Constant <value = float {0.007874016}> ()
    scale = Mul(largest, step)
    zero_point = Constant <value = uint8 {128}> ()
    huge = Constant <value = float {3.0e38}> ()
    zero_points = QuantizeLinear(scale, huge, zero_point)
    quantized = QuantizeLinear <axis = -1, block_size: int = @width> (x, scale, zero_points)
"""
_POSITIVE_ROWS = """
    largest = ReduceMax <keepdims = 1> (x, last_axis)
    step = Constant <value = float {0.003921569}> ()
    scale = Mul(largest, step)
    zero_point = Constant <value = uint8 {0}> ()
    quantized = QuantizeLinear <axis = -1, block_size: int = @width> (x, scale)
"""
# [O' / 16, I / 4, 16, 4] -> [I, O'], folded while the graph is loaded. ONNX Runtime has fast loops
# for each of these two, and none for a Transpose that moves all four axes at once.
_UNBLOCKED = """
    by_rows = Transpose <perm = [0, 1, 3, 2]> (weights)
    unblocked = Transpose <perm = [1, 2, 0, 3]> (by_rows)
    sizes = Constant <value_ints: ints = @shape> ()
    matrix = Reshape(unblocked, sizes)
"""
# [O' / 64, I, 64] -> [I, O]
_WITHOUT_PANELS = """
    by_rows = Transpose <perm = [1, 0, 2]> (weights)
    sizes = Constant <value_ints: ints = @shape> ()
    filled = Reshape(by_rows, sizes)
    first = Constant <value_ints = [0]> ()
    end = Constant <value_ints: ints = @end> ()
    columns = Constant <value_ints = [1]> ()
    matrix = Slice(filled, first, end, columns)
"""
_LAST_AXIS = "last_axis = Constant <value_ints = [-1]> ()"

# y [..., O]; columns that only fill up a block are cut off before there are floats of them.
_PRODUCT = """
    filled = MatMulInteger(quantized, matrix, zero_point)
    first = Constant <value_ints = [0]> ()
    end = Constant <value_ints: ints = @end> ()
    integers = Slice(filled, first, end, last_axis)
    by_row = DequantizeLinear <axis = -1, block_size: int = @columns> (integers, scale)
    kept_scales = Slice(scales, first, end, last_axis)
    by_column = Mul(by_row, kept_scales)
    product = Add(by_column, bias)
"""

# By the end of a function's name: its further inputs, and what is done to the product.
_AFTER = {
    "": ("", "y = Identity(product)"),
    "Relu": ("", "y = Relu(product)"),
    "Gelu": ("", "y = Gelu(product)"),
    "Swish": ("", "share = Sigmoid(product)\n    y = Mul(product, share)"),
    "Add": (", residual", "y = Add(product, residual)"),
    "AddNorm": (
        ", residual, gamma, beta",
        """
        sum = Add(product, residual)
        y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
        """,
    ),
}
# The same as the last, where the sum is read elsewhere too: it is the first output.
_AFTER["AddAndNorm"] = _AFTER["AddNorm"]


def _signature(after: str) -> tuple[str, str, str, str]:
    """By the end of a function's name: further attributes and inputs, outputs, what it does."""
    more, end = _AFTER[after]
    outputs = "sum, y" if after == "AddAndNorm" else "y"
    return ", epsilon" if after.endswith("Norm") else "", more, outputs, end


def _linear8(positive: bool, after: str) -> str:
    """A product in 8 bits.

    Inputs are x [..., I], weights (blocked), scales [O'] of columns, bias [O], and by `after` a
    residual [..., O], gamma and beta [O]; the output is y [..., O], and the sum if it is wanted.

    Attributes: width is I, shape [I, -1], columns O; end [O] or, where nothing has to be cut off, a
    number that no axis reaches, for then ONNX Runtime drops the Slice.
    """
    epsilon, more, outputs, end = _signature(after)
    return f"""<shape, end, columns, width{epsilon}>
    (x, weights, scales, bias{more}) => ({outputs}) {{
    {_LAST_AXIS}
    {_POSITIVE_ROWS if positive else _SIGNED_ROWS}
    {_UNBLOCKED}
    {_PRODUCT}
    {end}
    }}"""


def _linear(after: str) -> str:
    """A product.

    Inputs are x [..., I], weights (in panels), bias [O], and by `after` a residual [..., O], gamma
    and beta [O]; the output is y [..., O], and the sum if it is wanted.

    Attributes: shape is [I, -1]; end [O] or, where nothing has to be cut off, a number that no axis
    reaches, for then ONNX Runtime drops the Slice.
    """
    epsilon, more, outputs, end = _signature(after)
    return f"""<shape, end{epsilon}> (x, weights, bias{more}) => ({outputs}) {{
    {_WITHOUT_PANELS}
    plain = MatMul(x, matrix)
    product = Add(plain, bias)
    {end}
    }}"""


# Logits [N, K, V], column [N, K, 1] and count [1] -> the C best log-probabilities [N, K, C], their
# indices, and the log-probability at `column` [N, K, 1]. See top_k.
_TOP_LOGITS = """(logits, column, count) => (values, indices, at_column) {
    begin = Constant <value_ints = [0]> ()
    end = Constant <value_ints = [1]> ()
    last_axis = Constant <value_ints = [-1]> ()
    best, indices = TopK <axis = -1> (logits, count)
    largest = Slice(best, begin, end, last_axis)
    probabilities = Softmax <axis = -1> (logits)
    of_largest = Slice(indices, begin, end, last_axis)
    probability = GatherElements <axis = -1> (probabilities, of_largest)
    log_probability = Log(probability)
    log_total = Sub(largest, log_probability)
    values = Sub(best, log_total)
    found = GatherElements <axis = -1> (logits, column)
    at_column = Sub(found, log_total)
}"""

# The vocabulary's product of x [N, K, I] and TopLogits of it. `hidden` [V'] is 0, and hides the
# columns that only fill up a block by -1e30.
_CANDIDATES8 = f"""<shape, width> (x, weights, scales, hidden, column, count)
    => (values, indices, at_column) {{
    {_LAST_AXIS}
    {_SIGNED_ROWS}
    {_UNBLOCKED}
    one = Constant <value = float {{1.0}}> ()
    by_column = com.microsoft.MatMulIntegerToFloat(
        quantized, matrix, one, scales, zero_point, , hidden)
    logits = Mul(by_column, scale)
    values, indices, at_column = {DOMAIN}.TopLogits(logits, column, count)
}}"""

# The same where logits have a bias: `bias` [V'], which hides those columns as well.
_CANDIDATES8_BIASED = f"""<shape, width> (x, weights, scales, bias, column, count)
    => (values, indices, at_column) {{
    {_LAST_AXIS}
    {_SIGNED_ROWS}
    {_UNBLOCKED}
    one = Constant <value = float {{1.0}}> ()
    by_column = com.microsoft.MatMulIntegerToFloat(quantized, matrix, one, scales, zero_point)
    by_row = Mul(by_column, scale)
    logits = Add(by_row, bias)
    values, indices, at_column = {DOMAIN}.TopLogits(logits, column, count)
}}"""

# The product of x [N, K, I] and the rows of the vocabulary's matrix [V, I], and TopLogits of it.
_VOCABULARY_CANDIDATES = f"""(x, rows, column, count) => (values, indices, at_column) {{
    matrix = Transpose <perm = [1, 0]> (rows)
    logits = MatMul(x, matrix)
    values, indices, at_column = {DOMAIN}.TopLogits(logits, column, count)
}}"""

# The same where logits have a bias [V].
_VOCABULARY_CANDIDATES_BIASED = f"""(x, rows, bias, column, count)
    => (values, indices, at_column) {{
    matrix = Transpose <perm = [1, 0]> (rows)
    product = MatMul(x, matrix)
    logits = Add(product, bias)
    values, indices, at_column = {DOMAIN}.TopLogits(logits, column, count)
}}"""

# Of tokens instead of the whole vocabulary: x [N, K, I], rows of the vocabulary's matrix [V, I],
# shortlist [N, W] (0 in empty places), column [N, K, 1] (the same for all beams of a sentence) and
# count [1] -> the C best log-probabilities among the sentence's own tokens [N, K, C], the tokens,
# and the log-probability at `column` [N, K, 1], listed or not. The column is one more place while
# there are only products.
_LISTED_PLACES = """
    first = Constant <value_ints = [0]> ()
    second = Constant <value_ints = [1]> ()
    last_axis = Constant <value_ints = [-1]> ()
    first_column = Slice(column, first, second, second)
    one_column = Squeeze(first_column, last_axis)
    places = Concat <axis = 1> (shortlist, one_column)
    found_rows = Gather <axis = 0> (rows, places)
    matrices = Transpose <perm = [0, 2, 1]> (found_rows)
"""
_LISTED_BEST = """
    of_list = Slice(products, first, last_axis, last_axis)
    none = Constant <value_int = 0> ()
    is_empty = Equal(shortlist, none)
    masked = Constant <value = float {-1.0e9}> ()
    shown = Constant <value = float {0.0}> ()
    bias = Where(is_empty, masked, shown)
    bias_of_beams = Unsqueeze(bias, second)
    masked_logits = Add(of_list, bias_of_beams)
    log_total = ReduceLogSumExp <keepdims = 1> (masked_logits, last_axis)
    best, place = TopK <axis = -1> (masked_logits, count)
    values = Sub(best, log_total)
    tokens = Unsqueeze(shortlist, second)
    sizes = Shape(masked_logits)
    tokens_of_beams = Expand(tokens, sizes)
    indices = GatherElements <axis = -1> (tokens_of_beams, place)
    end = Constant <value_ints = [9223372036854775807]> ()
    of_column = Slice(products, last_axis, end, last_axis)
    at_column = Sub(of_column, log_total)
"""
_LISTED = f"""(x, rows, shortlist, column, count) => (values, indices, at_column) {{
    {_LISTED_PLACES}
    products = MatMul(x, matrices)
    {_LISTED_BEST}
}}"""

# The same where logits have a bias [V].
_BIASED = """
    found_biases = Gather <axis = 0> (biases, places)
    bias_row = Unsqueeze(found_biases, second)
    products = Add(unbiased, bias_row)
"""
_LISTED_BIASED = f"""(x, rows, biases, shortlist, column, count)
    => (values, indices, at_column) {{
    {_LISTED_PLACES}
    unbiased = MatMul(x, matrices)
    {_BIASED}
    {_LISTED_BEST}
}}"""

# The same in 8 bits: rows [V, I] have scales [V, 1].
_LISTED8_PRODUCTS = f"""
    {_LISTED_PLACES}
    {_SIGNED_ROWS}
    integers = MatMulInteger(quantized, matrices, zero_point)
    numbers = Cast <to = 1> (integers)
    by_row = Mul(numbers, scale)
    found_scales = Gather <axis = 0> (scales, places)
    column_scales = Transpose <perm = [0, 2, 1]> (found_scales)
"""
_LISTED8 = f"""<width> (x, rows, scales, shortlist, column, count)
    => (values, indices, at_column) {{
    {_LISTED8_PRODUCTS}
    products = Mul(by_row, column_scales)
    {_LISTED_BEST}
}}"""
_LISTED8_BIASED = f"""<width> (x, rows, scales, biases, shortlist, column, count)
    => (values, indices, at_column) {{
    {_LISTED8_PRODUCTS}
    unbiased = Mul(by_row, column_scales)
    {_BIASED}
    {_LISTED_BEST}
}}"""

# Places [N, K, H, 3] in a cache [N, H, P, D] of slots [N, K]. They are made of nothing but the
# slots and constants of one element: all layers' are equal then, and ONNX Runtime makes them once.
_PLACES = """
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    first = Constant <value_ints = [0]> ()
    last_axis = Constant <value_ints = [-1]> ()
    number_of_heads = Constant <value_int: int = @heads> ()
    last_size = Unsqueeze(number_of_heads, first)
    first_axes = Shape(slots)
    place_sizes = Concat <axis = 0> (first_axes, last_size)
    sentences = Gather <axis = 0> (first_axes, zero)
    sentence = Range(zero, sentences, one)
    sentence_row = Unsqueeze(sentence, last_axis)
    sentence_rows = Unsqueeze(sentence_row, last_axis)
    head = Range(zero, number_of_heads, one)
    slot_rows = Unsqueeze(slots, last_axis)
    each_sentence = Expand(sentence_rows, place_sizes)
    each_head = Expand(head, place_sizes)
    each_slot = Expand(slot_rows, place_sizes)
    sentence_index = Unsqueeze(each_sentence, last_axis)
    head_index = Unsqueeze(each_head, last_axis)
    slot_index = Unsqueeze(each_slot, last_axis)
    places = Concat <axis = -1> (sentence_index, head_index, slot_index)
"""

# How caches are written and read by what they hold: floats, or numbers of 16 bits
# (passes/fp16_kv_cache.py).
_AS_IT_IS = "{to} = Identity({of})"
_NARROWED = f"""
    {{to}}_limited = Clip({{of}}, least, most)
    {{to}} = Cast <to = {ir.DataType.FLOAT16.value}> ({{to}}_limited)
"""
_WIDENED = f"{{to}} = Cast <to = {ir.DataType.FLOAT.value}> ({{of}})"
_LIMITS = f"""
    least = Constant <value = float {{{-MOST_HALF}}}> ()
    most = Constant <value = float {{{MOST_HALF}}}> ()
"""


def _cached_attention(half: bool) -> str:
    """Attention over caches, and what is written into them before.

    qkv [N, K, 3 * H * D] are queries (scaled), keys and values; caches [N, H, P, D]; slots [N, K];
    bias [N, 1, K, P] -> context [N, K, H * D] and the caches with keys and values in those slots.
    """
    written = _NARROWED if half else _AS_IT_IS
    read = _WIDENED if half else _AS_IT_IS
    return f"""<heads, splits, head_shape>
    (qkv, past_key, past_value, slots, bias) => (context, next_key, next_value) {{
    sizes = Constant <value_ints: ints = @splits> ()
    query, key, value = Split <axis = -1> (qkv, sizes)
    split_heads = Constant <value_ints: ints = @head_shape> ()
    {_LIMITS if half else ""}
    {written.format(of="key", to="cached_key")}
    {written.format(of="value", to="cached_value")}
    key_heads = Reshape(cached_key, split_heads)
    value_heads = Reshape(cached_value, split_heads)
    {_PLACES}
    next_key = ScatterND(past_key, places, key_heads)
    next_value = ScatterND(past_value, places, value_heads)
    {read.format(of="next_key", to="keys")}
    {read.format(of="next_value", to="values")}
    context = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale = 1.0>
        (query, keys, values, , , bias)
    }}"""


def _beam_attention(half: bool) -> str:
    """query [N, K, H * D] (scaled), key and value [N, H, S, D], bias [N, 1, 1, S] -> as query."""
    read = _WIDENED if half else _AS_IT_IS
    return f"""<heads> (query, key, value, bias) => (context) {{
    ones = Constant <value_ints = [1, 1]> ()
    one = Constant <value_ints = [1]> ()
    beams = Shape <start = 1, end = 2> (query)
    sizes = Concat <axis = 0> (ones, beams, one)
    bias_rows = Expand(bias, sizes)
    {read.format(of="key", to="keys")}
    {read.format(of="value", to="values")}
    context = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale = 1.0>
        (query, keys, values, , , bias_rows)
    }}"""


# qkv [N, S, 3 * H * D] (queries scaled), bias [N, 1, 1, S] -> context [N, S, H * D].
_SELF_ATTENTION = """<heads, splits> (qkv, bias) => (context) {
    parts = Constant <value_ints: ints = @splits> ()
    query, key, value = Split <axis = -1> (qkv, parts)
    ones = Constant <value_ints = [1, 1]> ()
    one = Constant <value_ints = [1]> ()
    tokens = Shape <start = 1, end = 2> (qkv)
    sizes = Concat <axis = 0> (ones, tokens, one)
    bias_rows = Expand(bias, sizes)
    context = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale = 1.0>
        (query, key, value, , , bias_rows)
}"""


def _split_heads(half: bool) -> str:
    """Columns [begin, end) of x [N, S, ...] as [N, H, S, D]; head_shape is [0, 0, H, D]."""
    kept = _NARROWED if half else _AS_IT_IS
    return f"""<begin, end, head_shape> (x) => (heads) {{
    first = Constant <value_ints: ints = @begin> ()
    last = Constant <value_ints: ints = @end> ()
    last_axis = Constant <value_ints = [-1]> ()
    columns = Slice(x, first, last, last_axis)
    {_LIMITS if half else ""}
    {kept.format(of="columns", to="kept")}
    shape = Constant <value_ints: ints = @head_shape> ()
    by_token = Reshape(kept, shape)
    heads = Transpose <perm = [0, 2, 1, 3]> (by_token)
    }}"""


# x and residual [..., O], gamma and beta [O].
_ADD_NORM = """<epsilon> (x, residual, gamma, beta) => (y) {
    sum = Add(x, residual)
    y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
}"""

# Rows of a table [V, O] at tokens [N, K] times a factor, and of another at the positions [N] of
# their sentences.
_POSITION = """
    first = Constant <value_ints = [1]> ()
    position = Gather <axis = 0> (position_table, positions)
    position_row = Unsqueeze(position, first)
"""
_SCALED = """
    number = Constant <value_float: float = @factor> ()
    scaled = Mul(embedded, number)
    y = Add(scaled, position_row)
"""
_EMBED = f"""<factor> (table, position_table, tokens, positions) => (y) {{
    {_POSITION}
    embedded = Gather <axis = 0> (table, tokens)
    {_SCALED}
}}"""
# In 8 bits, with a scale for each row [V, 1].
_EMBED8 = f"""<factor> (table, scales, position_table, tokens, positions) => (y) {{
    {_POSITION}
    integers = Gather <axis = 0> (table, tokens)
    scale = Gather <axis = 0> (scales, tokens)
    numbers = Cast <to = 1> (integers)
    embedded = Mul(numbers, scale)
    {_SCALED}
}}"""


def linear8(positive: bool, after: str) -> str:
    """The name of a product in 8 bits.

    Args:
        positive: nothing in x is negative.
        after: what is done to the product: nothing, "Relu", "Gelu", "Swish", "Add", "AddNorm" or
            "AddAndNorm".
    """
    return f"Linear8{'Positive' if positive else ''}{after}"


_CACHES = (("", False), ("16", True))  # by the end of a name: in 16 bits or not

_TEXTS = {
    **{f"Linear{after}": _linear(after) for after in _AFTER},
    "VocabularyCandidates": _VOCABULARY_CANDIDATES,
    f"{BIASED}VocabularyCandidates": _VOCABULARY_CANDIDATES_BIASED,
    **{
        linear8(positive, after): _linear8(positive, after)
        for positive in (False, True)
        for after in _AFTER
    },
    "Candidates8": _CANDIDATES8,
    f"{BIASED}Candidates8": _CANDIDATES8_BIASED,
    "TopLogits": _TOP_LOGITS,
    LISTED: _LISTED,
    f"{LISTED}8": _LISTED8,
    f"{BIASED}{LISTED}": _LISTED_BIASED,
    f"{BIASED}{LISTED}8": _LISTED8_BIASED,
    **{f"CachedAttention{end}": _cached_attention(half) for end, half in _CACHES},
    **{f"BeamAttention{end}": _beam_attention(half) for end, half in _CACHES},
    "SelfAttention": _SELF_ATTENTION,
    **{f"SplitHeads{end}": _split_heads(half) for end, half in _CACHES},
    "AddNorm": _ADD_NORM,
    "Embed": _EMBED,
    "Embed8": _EMBED8,
}

#: Names of all functions whose bodies are written here; those of match_search.py are traced.
NAMES = tuple(_TEXTS)


def function(name: str, opset: int) -> ir.Function:
    """The function of that name, which imports the domains that its body uses.

    Args:
        name: one of `NAMES`.
        opset: of ONNX's operators, at least 21: that of the graph which calls it.
    """
    body = _TEXTS[name]
    opsets = {"": opset, "com.microsoft": 1, DOMAIN: VERSION}
    imports = ", ".join(f'"{d}" : {v}' for d, v in opsets.items() if not d or f"{d}." in body)
    text = f'<domain: "{DOMAIN}", opset_import: [{imports}]> {name} {body}'
    return ir.serde.deserialize_function(onnx.parser.parse_function(text))
