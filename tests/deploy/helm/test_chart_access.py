"""Network policies and permissions of the chart's pods."""

from tests.deploy.helm.rendered import Object, Rendered, Workload, selects

GATEWAY, VERIFIER, SPECULATOR, REDIS = (
    {"app.kubernetes.io/name": f"specinfer-{word}", "app.kubernetes.io/instance": "specinfer"}
    for word in ("gateway", "verifier", "speculator", "redis")
)


def test_network_policies_let_in_whom_they_should(objects: Rendered) -> None:
    """Each port accepts connections from exactly these peers: (labels of the pod, its namespace)."""
    client, prometheus = ({"app": "x"}, "default"), ({"app": "prometheus"}, "monitoring")
    gateway, verifier = (GATEWAY, "specinfer"), (VERIFIER, "specinfer")
    foreign = (GATEWAY, "default")
    others = {"verifier": [verifier] if objects.of_kind("LeaderWorkerSet") else [], "speculator": []}
    """Ranks of one model may call each other at all ports."""
    for word in ("verifier", "speculator"):
        workload = objects.workload(f"specinfer-{word}")
        callers = [client, prometheus, gateway, verifier, foreign]
        assert admitted(objects, workload, "grpc", callers) == [gateway, *others[word]]
        assert admitted(objects, workload, "metrics", [client, prometheus, gateway, foreign]) == [prometheus]
    workload = objects.workload("specinfer-gateway")
    assert admitted(objects, workload, "grpc", [client, verifier]) == [client, verifier]
    assert admitted(objects, workload, "metrics", [client, prometheus, verifier]) == [prometheus]
    for workload in objects.workloads:
        if workload.name == "specinfer-redis":
            callers = [client, prometheus, gateway, verifier, foreign]
            assert admitted(objects, workload, "redis", callers) == [gateway]


def admitted(
    objects: Rendered, target: Workload, port: str, callers: list[tuple[dict[str, str], str]]
) -> list[tuple[dict[str, str], str]]:
    policies = [
        row["spec"]
        for row in objects.of_kind("NetworkPolicy")
        if selects(row["spec"]["podSelector"], target.labels) and "Ingress" in row["spec"]["policyTypes"]
    ]
    assert policies, f"whoever likes reaches {target.name}"
    rules = [rule for policy in policies for rule in policy.get("ingress", [])]
    for rule in rules:
        for named in rule.get("ports", []):
            selected = [row for row in objects.workloads if named["port"] in row.ports]
            assert selected, f"no port is called {named['port']}"
    open_rules = [
        rule for rule in rules if "ports" not in rule or port in [named["port"] for named in rule["ports"]]
    ]
    return [caller for caller in callers if any(_lets_in(rule, *caller) for rule in open_rules)]


def _lets_in(rule: Object, labels: dict[str, str], namespace: str) -> bool:
    if "from" not in rule:
        return True
    return any(_is_peer(peer, labels, namespace) for peer in rule["from"])


def _is_peer(peer: Object, labels: dict[str, str], namespace: str) -> bool:
    space = peer.get("namespaceSelector")
    here = (
        namespace == "specinfer"
        if space is None
        else selects(space, {"kubernetes.io/metadata.name": namespace})
    )
    return here and selects(peer.get("podSelector", {}), labels)


def test_pods_may_do_little(objects: Rendered) -> None:
    """Pods follow Pod Security's `restricted`, with a read-only root and without a service account token."""
    accounts = {row["metadata"]["name"]: row for row in objects.of_kind("ServiceAccount")}
    for workload in objects.workloads:
        pod, context = workload.pod, workload.pod["securityContext"]
        assert pod["automountServiceAccountToken"] is False
        assert accounts[pod["serviceAccountName"]]["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        kinds = {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
        assert all(kinds & set(volume) for volume in pod.get("volumes", []))
        for container in workload.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]


def test_what_is_written_lies_on_volumes(objects: Rendered) -> None:
    for workload in objects.workloads:
        volumes = {volume["name"] for volume in workload.pod.get("volumes", [])}
        volumes |= {
            claim["metadata"]["name"] for claim in workload.source["spec"].get("volumeClaimTemplates", [])
        }
        for container in workload.containers:
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
            assert set(mounts.values()) <= volumes
            environment = objects.environment(workload.pod, container)
            if workload.name not in ("specinfer-redis", "specinfer-http"):
                assert {environment["HOME"], environment["SPECINFER_CACHE"]} <= set(mounts)
