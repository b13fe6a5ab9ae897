"""The comparison of the truth test must see every difference, or its agreement says nothing."""

from tests.truth.compare import differences, parse

LOG = """STEP 0 100
V1130 13:02:55.687000 14936 torch/_dynamo/guards.py:5396] [0/0] [__guards] | +- GUARD: id(L['self']) == 140234567890123
V1130 13:02:55.687000 14936 torch/_dynamo/guards.py:5396] [0/0] [__guards] | +- GUARD: 2 <= L['x'].size()[1] <= 256
noise of a library
STEP 1 300
V1130 13:02:56.687000 14936 torch/_dynamo/guards.py:5396] [0/1] [__recompiles] Recompiling function forward
V1130 13:02:56.687000 14936 torch/_dynamo/guards.py:5396] [0/1] [__recompiles]     - 0/0: 2 <= L['x'].size()[1] <= 256
V1130 13:02:56.687000 14936 torch/_dynamo/guards.py:5396] [0/1] [__guards] Guard eval latency = 11.2 us
"""


def test_a_log_is_read_by_step_and_compile():
    log = parse(LOG)
    assert list(log.recompiles) == ["0 100", "1 300"]
    assert log.recompiles["1 300"] == [
        "Recompiling function forward",
        "    - 0/0: 2 <= L['x'].size()[1] <= 256",
    ]
    assert {k: len(v) for k, v in log.guards.items()} == {"[0/0]": 2, "[0/1]": 1}


def test_addresses_and_timings_are_no_difference():
    assert (
        differences(
            parse(LOG),
            parse(
                LOG.replace("140234567890123", "139999999999999")
                .replace("11.2", "99.9")
                .replace("14936", "7")
            ),
        )
        == []
    )
    named = (
        LOG
        + "V1130 13:02:55.687000 14936 torch/_dynamo/guards.py:5396] [0/0] [__guards] | +- LAMBDA_GUARD: G['_140079421034064_c1'].Tensor\n"
    )
    assert differences(parse(named), parse(named.replace("140079421034064", "140147028610560"))) == []
    assert differences(parse(named), parse(named.replace("_c1", "_c2"))) != []


def test_a_bound_a_step_and_a_compile_are():
    real = parse(LOG)
    assert any("257" in line for line in differences(real, parse(LOG.replace("<= 256", "<= 257"))))
    assert any(
        line.startswith("steps") for line in differences(real, parse(LOG.replace("STEP 1 300", "STEP 1 301")))
    )
    assert any(
        line.startswith("compiles") for line in differences(real, parse(LOG.replace("[0/1]", "[0/2]")))
    )
    later = LOG.replace("STEP 1 300\n", "").replace("noise of a library\n", "") + "STEP 1 300\n"
    assert any(line.startswith("recompiles of step") for line in differences(real, parse(later)))


def test_a_guard_that_a_cache_lookup_repeats_may_have_another_asker_but_no_other_expression():
    line = "V1130 13:02:55.687000 14936 torch/_dynamo/guards.py:5396] [0/0] [__guards] +- LAMBDA_GUARD: L['self'].head_dim == 32"
    real = parse(LOG + line + "  # (_inductor/codecache.py:2102 in _lookup_graph)\n")
    lowering = "  # (_inductor/lowering.py:571 in broadcast_symbolic_shapes)\n"
    assert differences(real, parse(LOG + line + lowering)) == []
    assert differences(real, parse(LOG + line.replace("32", "64") + lowering)) != []
    # without a look-up on the real side the asker counts
    assert differences(parse(LOG + line + lowering), parse(LOG + line + lowering.replace("571", "572"))) != []
