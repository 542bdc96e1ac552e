"""Translation of metrics in Prometheus' text format; Prometheus' own client parses the results."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.translators.strategies import dns_labels
from translators.object_accessors import HomeNamespace, HomeUid
from translators.ownership_labels import Origin
from translators.pod_metrics import exposition
from translators.pod_metrics.exposition import RemotePodName

OURS = {
    RemotePodName("shop-h", "web"): Origin(HomeNamespace("shop"), "web", HomeUid("home-1")),
    RemotePodName("shop-h", "db"): Origin(HomeNamespace("shop"), "db", HomeUid("home-2")),
}

#: Output of a 1.34 kubelet, with an unmanaged pod.
RESOURCE = """\
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="shop-h",pod="web"} 1.25 1700000000123
container_cpu_usage_seconds_total{container="main",namespace="other",pod="web"} 7 1700000000123
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 100 1700000000123
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="shop-h",pod="web"} 1.5 1700000000123
# HELP resource_scrape_error [STABLE] 1 if there was an error
# TYPE resource_scrape_error gauge
resource_scrape_error 0
"""


def translated(text: str) -> str:
    return exposition.render_families(exposition.relabel_metrics(text, OURS))


def test_only_samples_of_managed_pods_are_kept_with_home_names() -> None:
    assert translated(RESOURCE) == (
        "# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the "
        "container\n"
        "# TYPE container_cpu_usage_seconds_total counter\n"
        'container_cpu_usage_seconds_total{container="main",namespace="shop",pod="web"} 1.25 '
        "1700000000123\n"
        "# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod\n"
        "# TYPE pod_cpu_usage_seconds_total counter\n"
        'pod_cpu_usage_seconds_total{namespace="shop",pod="web"} 1.5 1700000000123\n'
    )


def test_no_pods_result_in_empty_text() -> None:
    assert exposition.render_families(exposition.relabel_metrics(RESOURCE, {})) == ""


def test_pod_uid_label_is_translated() -> None:
    text = (
        'prober_probe_total{container="c",namespace="shop-h",pod="db",pod_uid="remote-2",'
        'probe_type="Liveness"} 3\n'
    )
    assert translated(text) == (
        'prober_probe_total{container="c",namespace="shop",pod="db",pod_uid="home-2",'
        'probe_type="Liveness"} 3\n'
    )


def test_histogram_samples_stay_in_one_family() -> None:
    labels = 'namespace="shop-h",pod="web"'
    text = (
        "# TYPE duration histogram\n"
        f'duration_bucket{{{labels},le="+Inf"}} 1\nduration_sum{{{labels}}} 2\n'
        f"duration_count{{{labels}}} 1\n"
        f"duration_other{{{labels}}} 5\n"
    )
    assert list(exposition.relabel_metrics(text, OURS)) == ["duration", "duration_other"]
    assert translated(text).splitlines()[0] == "# TYPE duration histogram"


def test_families_of_two_kubelets_are_merged() -> None:
    second = RESOURCE.replace('pod="web"', 'pod="db"')
    parts = [exposition.relabel_metrics(text, OURS) for text in (RESOURCE, second)]
    whole = exposition.render_families(exposition.merge_families(parts))
    assert whole.count("# TYPE container_cpu_usage_seconds_total") == 1
    (cpu, _) = text_string_to_metric_families(whole)
    assert [sample.labels["pod"] for sample in cpu.samples] == ["web", "db"]
    assert exposition.render_families(exposition.merge_families(parts[:1])) == translated(
        RESOURCE
    ), "unchanged by that"


def test_label_value_that_looks_like_a_label_is_ignored() -> None:
    for text in (
        'x{image="a,namespace=",pod="web"} 1',
        'x{image="\\",namespace=\\"shop-h",pod="web"} 1',
        'x{image="namespace=\\"shop-h\\",pod=\\"web\\""} 1',
    ):
        assert translated(text) == ""


def test_invalid_lines_are_dropped() -> None:
    for text in (
        'x{namespace="shop-h",pod="web" 1',
        'x{namespace="shop-h",pod=web} 1',
        'x{namespace="shop-h";pod="web"} 1',
        'x{namespace="shop-h",pod="web",namespace="other"} 1',
        "{}",
        "}{",
        "# a comment",
        "",
    ):
        assert translated(text) == ""


@pytest.mark.parametrize(
    "line",
    [
        '1x{LABELS} 1',
        'x y{LABELS} 1',
        'é{LABELS} 1',
        '{LABELS} 1',
        'x{LABELSa="b"} 1',
        'x{LABELS,é="b"} 1',
        'x{LABELS,__name__="y"} 1',
        'x{LABELS,a="\\x"} 1',
        'x{LABELS,a="\0"} 1',
        'x{LABELS,le="many"} 1',
        'x{LABELS,quantile="1e999"} 1',
        'x{LABELS,le="1"} -1',
        'x_bucket{LABELS} -Inf',
        'x_count{LABELS} -0.5',
        'x{LABELS}',
        'x{LABELS} one',
        'x{LABELS} 1_0',
        'x{LABELS} \u0661',
        'x{LABELS} 1e999',
        'x{LABELS} nan',
        'x{LABELS} 1 2 3',
        'x{LABELS} 1 1.5',
        'x{LABELS} 1 -5',
        'x{LABELS} 1 99999999999999999999',
        'x{LABELS} 1\r',
        'x{LABELS}\u00a01',
        'x{LABELS} 1 # {trace="1"} 1',
    ],
)  # fmt: skip
def test_sample_that_parsers_of_prometheus_reject_is_dropped(line: str) -> None:
    line = line.replace("LABELS", 'namespace="shop-h",pod="web"')
    assert translated(f"{line}\n{SAMPLE}") == 'm{namespace="shop",pod="web"} 1\n'


@pytest.mark.parametrize("value", ["1", "-1.5", "+.5", "1.", "1.7e+308", "NaN", "+Inf", "-Inf"])
def test_numbers_of_prometheus_are_kept(value: str) -> None:
    text = f'x {{ namespace = "shop-h" , pod = "web" , quantile = "{value}" , }}\t{value} \t 5 '
    pairs = f' namespace = "shop" , pod = "web" , quantile = "{value}" ,'
    assert translated(text.replace(" , }", " ,}")) == f"x{{{pairs}}} {value} 5\n"


@pytest.mark.parametrize(
    "header",
    [
        "# TYPE m fast",
        "# TYPE 1m counter",
        "# TYPE m",
        "# TYPE  m counter",
        "# HELP m a\\x",
        "# HELP m a\0",
        "# HELP m\tabc",
        "#\u00a0HELP m abc",
    ],
)
def test_header_that_parsers_of_prometheus_reject_is_dropped(header: str) -> None:
    assert translated(f"{header}\n{SAMPLE}") == 'm{namespace="shop",pod="web"} 1\n'


def test_family_has_one_help_and_one_type_before_its_samples() -> None:
    first, second = "# HELP m a\n# TYPE m counter\n", "# HELP m b\n# TYPE m gauge\n"
    expected = first + 'm{namespace="shop",pod="web"} 1\n'
    assert translated(f"{first}{second}{SAMPLE}\n{second}") == expected
    assert translated(f"{SAMPLE}\n{first}") == 'm{namespace="shop",pod="web"} 1\n'


def test_family_that_is_named_as_a_part_of_another_has_no_header() -> None:
    """A parser takes ``m_count`` for a part of a histogram or summary ``m``, with one TYPE."""
    part = '# TYPE m_count counter\nm_count{namespace="shop-h",pod="web"} 2\n'
    whole = f"# TYPE m summary\n{SAMPLE}\n"
    samples = [
        'm{namespace="shop",pod="web"} 1',
        'm_count{namespace="shop",pod="web"} 2',
    ]
    assert translated(part).splitlines() == ["# TYPE m_count counter", samples[1]]
    assert translated(part + whole).splitlines() == ["# TYPE m summary", *samples]


def test_samples_are_parsed_with_timestamps() -> None:
    families = exposition.relabel_metrics(RESOURCE, OURS)
    (sample,) = exposition.parse_samples(families["pod_cpu_usage_seconds_total"])
    assert sample == ({"namespace": "shop", "pod": "web"}, 1.5, 1700000000123)
    odd = exposition.Family(samples=['x{pod="a"} NaN', 'x{pod="b"} none', 'x{pod="c"}'])
    assert [it.labels["pod"] for it in exposition.parse_samples(odd)] == ["a"]


#: Any label value; kubelets use names of images and containers.
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
names = st.sampled_from(["container", "image", "id", "name", "device"])


@given(
    labels=st.dictionaries(names, values),
    pod=st.sampled_from([*OURS, RemotePodName("other", "web"), RemotePodName("shop-h", "foreign")]),
    value=st.floats(allow_nan=False, allow_infinity=False),
    at=st.none() | st.integers(0, 2**41),
    first=st.booleans(),
)
def test_formatted_samples_are_parsed_by_prometheus(
    labels: dict[str, str], pod: RemotePodName, value: float, at: int | None, first: bool
) -> None:
    named = {"namespace": pod.namespace, "pod": pod.name}
    given_labels = {**named, **labels} if first else {**labels, **named}
    families = exposition.relabel_metrics(
        exposition.format_sample("x", given_labels, value, at), OURS
    )
    home = OURS.get(pod)
    if home is None:
        assert families == {}
        return
    ours = {**labels, "namespace": home.namespace, "pod": home.name}
    (read,) = exposition.parse_samples(families["x"])
    assert read == (ours, value, at)
    (metric,) = text_string_to_metric_families(exposition.render_families(families))
    (sample,) = metric.samples
    assert (sample.labels, sample.value) == (ours, value)
    assert (sample.timestamp is None) == (at is None)


@given(st.text(max_size=60), dns_labels)
def test_arbitrary_text_neither_fails_nor_leaks_unmanaged_pods(text: str, name: str) -> None:
    families = exposition.relabel_metrics(f'{text}\nx{{namespace="{name}",pod="{name}"}} 1', OURS)
    assert families == {}


@pytest.mark.parametrize(
    "lines",
    [
        [f"# HELP h{n}" for n in range(50_000)],
        ["# HELP same"] * 50_000,
        [f'x{{pod="{n}",namespace="x"}} 1' for n in range(50_000)],
    ],
)
def test_lines_without_samples_of_the_node_are_not_kept(lines: list[str]) -> None:
    text = "\n".join(lines)
    tracemalloc.start()
    families = exposition.relabel_metrics(text, OURS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert families == {}
    assert peak < 2**20


SIZE = 2**20
SAMPLE = 'm{namespace="shop-h",pod="web"} 1'


@pytest.mark.parametrize(
    "hostile",
    [
        'm{namespace="shop-h",pod="%s"} 1' % ("a" * SIZE),
        'm{a="%s"} 1' % ('\\"' * (SIZE // 2)),
        'm{a="%s"} 1' % ("\\" * SIZE),
        "ab\n" * (SIZE // 3),
        "\n".join(f"m{{{number}}}" for number in range(SIZE // 10)),
        "\n".join(f"# TYPE m{number} counter" for number in range(SIZE // 20)),
        "# TYPE m counter\n" * (SIZE // 17),
    ],
)
def test_hostile_text_needs_memory_in_proportion(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label of 32 MiB once took 5 GiB, and the interpreter for 20 s."""
    monkeypatch.setattr(exposition, "MAX_LABEL_SETS", 1000)
    monkeypatch.setattr(exposition, "MAX_FAMILIES", 1000)
    text = f"{hostile}\n{SAMPLE}\n"
    tracemalloc.start()
    try:
        families = exposition.relabel_metrics(text, OURS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * SIZE, f"{peak / SIZE:.1f} times the text"
    assert exposition.render_families(families).endswith('m{namespace="shop",pod="web"} 1\n')
