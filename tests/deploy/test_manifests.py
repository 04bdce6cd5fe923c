"""What `deploy/kubernetes` promises, read from its files. `test_pods.py` runs its command lines."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import (
    INSTALLATIONS,
    KUBERNETES,
    ROOT,
    Object,
    containers,
    named,
    pod_of,
    read,
    render,
)

VERSIONS = ("1.37", "1.31")
"""Of Kubernetes: the newest with a schema in kubernetes-validate, and one that is two years older."""

RELAY_DRAIN_SECONDS = 5


@pytest.fixture(params=INSTALLATIONS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(KUBERNETES / request.param)


def workloads(objects: list[Object]) -> Iterator[tuple[Object, Object]]:
    """Each workload, and the spec of its pods."""
    for one in objects:
        if (pod := pod_of(one)) is not None:
            yield one, pod["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(objects: list[Object], version: str) -> None:
    for one in objects:
        assert kubernetes_validate.validate(one, version, strict=True) == version


def test_a_wrong_field_would_be_seen(objects: list[Object]) -> None:
    relay = named(objects, "Deployment", "relay")
    relay["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(relay, VERSIONS[0], strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("name", INSTALLATIONS)
def test_kustomize_renders_the_same_objects(name: str) -> None:
    rendered = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / name)], capture_output=True, text=True, check=True
    ).stdout

    def key(one: Object) -> tuple[str, str]:
        return one["kind"], one["metadata"]["name"]

    assert sorted(yaml.safe_load_all(rendered), key=key) == sorted(render(KUBERNETES / name), key=key)


def test_each_file_can_be_applied_by_itself() -> None:
    for path in (KUBERNETES / "base").glob("*.yaml"):
        if path.name != "kustomization.yaml":
            for one in read(path):
                assert one["kind"] == "Namespace" or one["metadata"]["namespace"], path


def test_no_container_is_privileged(objects: list[Object]) -> None:
    for one, pod in workloads(objects):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert pod["automountServiceAccountToken"] is False
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        for container in containers(one):
            context = container["securityContext"]
            assert context.get("privileged") is None
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_only_executors_have_less_than_the_restricted_level(objects: list[Object]) -> None:
    """And none of them where Landlock confines the commands."""
    for one, pod in workloads(objects):
        level = named(objects, "Namespace", one["metadata"]["namespace"])["metadata"]["labels"][
            "pod-security.kubernetes.io/enforce"
        ]
        restricted = pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert level == ("restricted" if restricted else "privileged")
        unmasked = any("procMount" in each["securityContext"] for each in containers(one))
        assert unmasked is not restricted
        assert (pod.get("hostUsers") is False) is unmasked, "Kubernetes refuses an unmasked /proc otherwise"
        if one["metadata"]["name"] != "executor":
            assert restricted


def test_each_container_has_resources_and_probes(objects: list[Object]) -> None:
    for one, _ in workloads(objects):
        for container in containers(one):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]
            assert {"livenessProbe", "readinessProbe"} <= set(container)
            assert not container["image"].endswith(":latest")


def test_a_container_has_the_time_to_drain(objects: list[Object]) -> None:
    grace = {one["metadata"]["name"]: pod["terminationGracePeriodSeconds"] for one, pod in workloads(objects)}
    hooks = {
        one["metadata"]["name"]: each["lifecycle"]["preStop"]["exec"]["command"]
        for one, _ in workloads(objects)
        for each in containers(one)
    }
    assert hooks["relay"][0] == "sleep"
    assert grace["relay"] >= int(hooks["relay"][1]) + RELAY_DRAIN_SECONDS + 5
    assert hooks["executor"][:3] == ["execserver", "drain", "--wait"]
    assert grace["executor"] >= int(hooks["executor"][3]) + 20, "the daemon's own end takes up to 20 s"
    config = named(objects, "ConfigMap", "nats")["data"]["nats.conf"]
    settings = dict(line.split(": ") for line in config.splitlines() if line.startswith("lame_duck"))
    assert grace["nats"] > sum(int(value.removesuffix("s")) for value in settings.values())


def test_a_relay_and_a_quorum_survive_each_disruption(objects: list[Object]) -> None:
    for name, kind in (("relay", "Deployment"), ("nats", "StatefulSet")):
        workload = named(objects, kind, name)
        budget = named(objects, "PodDisruptionBudget", name)["spec"]
        replicas = workload["spec"]["replicas"]
        left = budget["minAvailable"] if "minAvailable" in budget else replicas - budget["maxUnavailable"]
        assert left < replicas, "a node could not be drained"
        assert left >= (1 if name == "relay" else replicas // 2 + 1)
        assert budget["selector"] == workload["spec"]["selector"]


def test_selectors_find_the_pods_and_ports(objects: list[Object]) -> None:
    pods = [(one, pod_of(one)) for one in objects]
    for service in (one for one in objects if one["kind"] == "Service"):
        (pod,) = [
            pod for one, pod in pods
            if pod is not None
            and one["metadata"]["namespace"] == service["metadata"]["namespace"]
            and service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        ]  # fmt: skip
        ports = {port["name"] for each in pod["spec"]["containers"] for port in each["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for one, _ in workloads(objects):
        for container in containers(one):
            ports = {port["name"] for port in container.get("ports", ())}
            probes = [value for key, value in container.items() if key.endswith("Probe")]
            assert {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe} <= ports


def test_nothing_reaches_an_executor_and_it_reaches_the_relays_only(objects: list[Object]) -> None:
    namespace = "execserver-executors"
    executor = named(objects, "Deployment", "executor")
    assert executor["metadata"]["namespace"] == namespace
    assert not [each for each in containers(executor) if "ports" in each]
    assert not [
        one for one in objects
        if one["kind"] in ("Service", "Ingress") and one["metadata"]["namespace"] == namespace
    ]  # fmt: skip
    policy = named(objects, "NetworkPolicy", "executor")
    assert policy["metadata"]["namespace"] == namespace
    assert policy["spec"]["podSelector"] == {}
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["ingress"] == []
    relays, names = policy["spec"]["egress"]
    (peer,) = relays["to"]
    relay = named(objects, "Deployment", "relay")
    assert peer["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": relay["metadata"]["namespace"]
    }
    assert peer["podSelector"] == relay["spec"]["selector"]
    ports = {port["containerPort"]: port["name"] for each in containers(relay) for port in each["ports"]}
    assert [ports[port["port"]] for port in relays["ports"]] == ["https"]
    assert {port["port"] for port in names["ports"]} == {53}


def test_only_relays_reach_nats(objects: list[Object]) -> None:
    policy = named(objects, "NetworkPolicy", "nats")["spec"]
    relay = named(objects, "Deployment", "relay")["spec"]["selector"]
    nats = named(objects, "StatefulSet", "nats")["spec"]["selector"]
    assert policy["podSelector"] == nats
    assert [(rule["from"], rule["ports"]) for rule in policy["ingress"]] == [
        ([{"podSelector": relay}], [{"port": "client"}]),
        ([{"podSelector": nats}], [{"port": "cluster"}]),
    ]


def test_no_manifest_has_a_secret() -> None:
    for path in KUBERNETES.rglob("*.yaml"):
        for one in read(path):
            assert one.get("kind") != "Secret", path
        assert "PRIVATE KEY" not in path.read_text()


def test_tokens_and_keys_come_from_secrets(objects: list[Object]) -> None:
    for one, pod in workloads(objects):
        secret = {each["name"] for each in pod["volumes"] if "secret" in each}
        for container in containers(one):
            mounts = [each for each in container["volumeMounts"] if each["name"] in secret]
            folders = [each["mountPath"] for each in mounts]
            assert all(each["readOnly"] for each in mounts)
            for argument in container["args"]:
                flag, _, path = argument.partition("=")
                if flag in ("--tls-key", "--nats-key", "--remote-token-file"):
                    assert str(Path(path).parent) in folders


def test_the_autoscaler_scales_the_executors_up_before_clients_wait_for_long() -> None:
    objects = render(KUBERNETES / "overlays/example")
    scaler = named(objects, "HorizontalPodAutoscaler", "executor")
    executor = named(objects, "Deployment", "executor")
    assert scaler["spec"]["scaleTargetRef"] == {
        "apiVersion": executor["apiVersion"],
        "kind": executor["kind"],
        "name": executor["metadata"]["name"],
    }
    assert scaler["metadata"]["namespace"] == executor["metadata"]["namespace"]
    assert "replicas" not in executor["spec"], "an apply would undo the autoscaler"
    (metric,) = scaler["spec"]["metrics"]
    flags = dict(each.partition("=")[::2] for each in next(containers(executor))["args"])
    assert metric["external"]["metric"]["selector"]["matchLabels"] == {"pool": flags["--pool"]}
    target = int(metric["external"]["target"]["averageValue"])
    assert int(flags["--capacity"]) > 1.1 * target, "within 10 % of the target the autoscaler does nothing"


def test_the_autoscaler_s_metric_is_made_of_metrics_that_exist() -> None:
    """Both queries ask for the same series."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    (adapter,) = read(KUBERNETES / "autoscaling/prometheus-adapter.yaml")
    (scaled,) = read(KUBERNETES / "autoscaling/keda.yaml")
    (rule,) = adapter["rules"]["external"]
    queries = [rule["seriesQuery"], rule["metricsQuery"]]
    queries += [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    for query in queries:
        (found,) = re.findall(r'__name__=~"(\w+)\(([\w|]+)\)"', query)
        for name in found[1].split("|"):
            assert f"`{found[0]}{name}`" in page
        assert set(found[1].split("|")) == {"sessions", "waiting"}
    scaler = named(render(KUBERNETES / "autoscaling"), "HorizontalPodAutoscaler", "executor")["spec"]
    (metric,) = scaler["metrics"]
    assert rule["name"]["as"] == metric["external"]["metric"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == metric["external"]["target"]["averageValue"]
    assert scaled["spec"]["maxReplicaCount"] == scaler["maxReplicas"]


def test_only_what_landlock_cannot_have_differs() -> None:
    base = named(render(KUBERNETES / "base"), "Deployment", "executor")
    landlock = named(render(KUBERNETES / "overlays/landlock"), "Deployment", "executor")
    assert landlock["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "--allow-landlock"
    assert flat(base) - flat(landlock) == {
        ".spec.template.spec.hostUsers=False",
        ".spec.template.spec.securityContext.appArmorProfile.type=Unconfined",
        ".spec.template.spec.securityContext.seccompProfile.type=Unconfined",
        ".spec.template.spec.containers.0.securityContext.procMount=Unmasked",
    }


def flat(value: Any, path: str = "") -> set[str]:
    """Each leaf with its path."""
    if isinstance(value, dict):
        return {line for key, each in value.items() for line in flat(each, f"{path}.{key}")}
    if isinstance(value, list):
        return {line for index, each in enumerate(value) for line in flat(each, f"{path}.{index}")}
    return {f"{path}={value}"}
