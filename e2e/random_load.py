"""A random load of changes by users and controllers to pods, for `e2e.test_soak` and faults.

The same seed gives the same steps with the same objects. Their effect depends on the state of the
clusters (a pod that is still being deleted, a faster controller), and rejections are part of the
load. There are few names, so deleted objects are soon re-created under their names.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from e2e.audit.tokens import WRITE
from e2e.clusters.errors import CommandFailed
from e2e.conftest import Bridged
from e2e.kubectl import get
from e2e.workload_manifests import BUSYBOX

#: The same image under another name, to change to and back.
OTHER_BUSYBOX = "docker.io/library/busybox:1.37"
#: Errors of a step that another change overtook; any other error fails the test.
_REFUSALS = (
    "AlreadyExists",
    "Conflict",
    "NotFound",
    "already exists",
    "being deleted",
    "being terminated",
    "not found",
    "object has been modified",
)
#: Errors of a step while an API server is unavailable or has just started.
_AWAY = (
    "EOF",
    "Forbidden: not yet ready",
    "InternalError",
    "ServerTimeout",
    "ServiceUnavailable",
    "Unable to connect",
    "Unauthorized",
    "connection lost",
    "connection refused",
    "connection reset",
    "deadline exceeded",
    "etcdserver",
    "i/o timeout",
    "not yet ready",
    "timed out",
    "timeout",
    "unable to handle the request",
    "was refused",
)
#: Maximum number of steps while the bridge is stopped.
AWAY_STEPS = 4

Json = dict[str, Any]


class RandomLoad:
    """Steps at home, and restarts of the bridge, chosen by one seeded random generator."""

    def __init__(self, bridged: Bridged, seed: int, say: Callable[[str], None]) -> None:
        self._bridged = bridged
        self._random = random.Random(seed)
        self._say = say
        self._jobs = 0
        self._classes = ("", "")
        self._begin = time.monotonic()
        self.steps: list[str] = []
        self.restarts: Counter[str] = Counter()
        self.lenient = False
        """Whether an API server may be unavailable: errors of that are recorded only."""
        self._table: list[tuple[int, Callable[[], None]]] = [
            (12, self._make_pod),
            (6, self._delete_pod),
            (4, self._replace_pod),
            (6, self._edit_pod),
            (4, self._change_image),
            (2, self._resize),
            (2, self._debug),
            (2, self._lose),
            (5, self._edit_config),
            (3, self._late_config),
            (3, self._service),
            (5, self._deployment),
            (4, self._stateful_set),
            (4, self._job),
            (1, self._delete_job),
        ]

    def use_volumes(self, storage_class: str, retained_class: str) -> None:
        """Adds volumes to the load: a StatefulSet with a PVC for each pod, and PVCs of either
        class (reclaim policies Delete and Retain) that are created and deleted with their pods."""
        self._classes = (storage_class, retained_class)
        self._table += [(4, self._database), (4, self._volume), (2, self._delete_volume)]

    def set_up(self) -> None:
        """Creates the objects that exist from the beginning."""
        # `kubectl debug --profile=general` adds SYS_PTRACE, which the level baseline forbids.
        level = "pod-security.kubernetes.io/enforce=privileged"
        self._bridged.home.kubectl(
            "label", "namespace", self._bridged.namespace, level, "--overwrite"
        )
        self._apply(*(_config("conf", n) for n in _NUMBERS), *(_secret(n) for n in _NUMBERS))
        self._apply(self._deployment_of(2, BUSYBOX), self._stateful_set_of(2))
        if all(self._classes):
            self._apply(self._database_of(2))

    def run(self, seconds: float, *, restart_every: float) -> None:
        """Runs steps for so long, and restarts the bridge about every ``restart_every`` seconds."""
        end = time.monotonic() + seconds
        restart_at = time.monotonic() + restart_every / 2
        while time.monotonic() < end:
            self.step()
            if time.monotonic() >= restart_at:
                self._restart()
                restart_at = time.monotonic() + restart_every * self._random.uniform(0.5, 1.5)

    def step(self) -> None:
        """Runs one random step."""
        weights, steps = zip(*self._table, strict=True)
        (step,) = self._random.choices(steps, weights)
        step()

    def _restart(self) -> None:
        """Stops or kills the bridge, runs some steps without it, and starts it again."""
        crash = self._random.random() < 0.5 if self.restarts.total() > 1 else bool(self.restarts)
        how = "kill -9" if crash else "SIGINT"
        self.note(f"-- {how}")
        self.restarts[how] += 1
        if crash:
            self._bridged.bridge.kill()
        else:
            assert self._bridged.bridge.stop() == 0
        for _ in range(self._random.randint(0, AWAY_STEPS)):
            self.step()
        self._bridged.bridge.start()
        self.note("-- the bridge is back")

    # -- pods --------------------------------------------------------------------------------

    def _make_pod(self) -> None:
        self._apply(*(self._pod() for _ in range(self._random.randint(1, 3))))

    def _pod(self) -> Json:
        flavour = self._random.choice(tuple(_FLAVOURS))
        spec = _FLAVOURS[flavour](self._random)
        return self._object(
            "Pod", f"{flavour}-{self._random.choice(_NUMBERS)}", spec=self._placed(spec)
        )

    def _pick(self, *flavours: str) -> str:
        flavour = self._random.choice(flavours or tuple(_FLAVOURS))
        return f"{flavour}-{self._random.choice(_NUMBERS)}"

    def _delete_pod(self) -> None:
        name = self._pick()
        graces = self._random.choice(((None,), (None,), (1,), (0,), (20, 1), (20, 0), (30, 5)))
        for grace in graces:
            self._delete("pod", name, grace=grace)
            self._random.random()

    def _replace_pod(self) -> None:
        """Deletes a pod at home at once; another takes its name while the first may still run."""
        pod = self._pod()
        self._delete("pod", pod["metadata"]["name"], grace=0)
        self._apply(pod)

    def _edit_pod(self) -> None:
        name, value = self._pick(), str(self._random.randint(0, 9))
        if self._random.random() < 0.5:
            self._kubectl("label", "pod", name, f"soak={value}", "--overwrite")
        elif self._random.random() < 0.7:
            self._kubectl("annotate", "pod", name, f"example.com/soak={value}", "--overwrite")
        else:
            self._kubectl("label", "pod", name, "soak-")

    def _change_image(self) -> None:
        # Never of a run-once pod: a kubelet restarts a container to change its image.
        image = self._random.choice((BUSYBOX, OTHER_BUSYBOX))
        self._kubectl("set", "image", f"pod/{self._pick('runs', 'reads')}", f"main={image}")

    def _resize(self) -> None:
        container = {"name": "main", "resources": {"requests": _cpu(self._random.randint(10, 19))}}
        patch = json.dumps({"spec": {"containers": [container]}})
        self._kubectl("patch", "pod", self._pick("runs"), "--subresource=resize", "--patch", patch)

    def _debug(self) -> None:
        name = self._pick("runs", "lasts")
        self._kubectl("debug", name, "--image", BUSYBOX, "--profile=general", "--", "sleep", "1")

    def _lose(self) -> None:
        """Deletes a pod in the remote only, gracefully or by force."""
        name = self._pick("runs", "reads", "lasts", "stubborn")
        how = self._random.choice(("--grace-period=1", "--grace-period=0"))
        force = ["--force"] if how.endswith("=0") else []
        args = ["delete", "pod", name, "--wait=false", how, *force]
        self._run(f"in the remote: {' '.join(args)}", *args, remote=True)

    # -- what pods refer to ------------------------------------------------------------------

    def _edit_config(self) -> None:
        make = self._random.choice((lambda n: _config("conf", n), _secret))
        changed = make(self._random.choice(_NUMBERS))
        field = "data" if changed["kind"] == "ConfigMap" else "stringData"
        changed[field] = {"KEY": str(self._random.randint(0, 99))}
        self._apply(changed)

    def _late_config(self) -> None:
        """Creates a ConfigMap that pods wait for, or deletes it while they use it."""
        number = self._random.choice(_NUMBERS)
        if self._random.random() < 0.7:
            self._apply(_config("late", number))
        else:
            self._delete("configmap", f"late-{number}")

    def _service(self) -> None:
        flavour = self._random.choice(("runs", "reads", "web"))
        if self._random.random() < 0.3:
            self._delete("service", flavour)
            return
        ports = [{"name": "http", "port": self._random.choice((80, 81))}]
        spec: Json = {"selector": {"app": flavour}, "ports": ports}
        self._apply({**_object("v1", "Service", flavour), "spec": spec})

    # -- controllers -------------------------------------------------------------------------

    def _deployment(self) -> None:
        replicas = self._random.randint(0, 4)
        image = self._random.choice((BUSYBOX, OTHER_BUSYBOX))
        if self._random.random() < 0.1:
            self._delete("deployment", "web")
        else:
            self._apply(self._deployment_of(replicas, image))

    def _deployment_of(self, replicas: int, image: str) -> Json:
        return self._controller(
            "Deployment", "web", {"replicas": replicas}, {**_sleeping(), "image": image}
        )

    def _stateful_set(self) -> None:
        if self._random.random() < 0.5:
            self._delete("pod", f"db-{self._random.randint(0, 2)}", grace=None)
        else:
            self._apply(self._stateful_set_of(self._random.randint(0, 3)))

    def _stateful_set_of(self, replicas: int) -> Json:
        spec: Json = {"replicas": replicas, "podManagementPolicy": "Parallel", "serviceName": "db"}
        return self._controller("StatefulSet", "db", spec, _sleeping())

    # -- volumes -----------------------------------------------------------------------------

    def _database(self) -> None:
        """Scales the StatefulSet with volumes, or deletes one of its pods or PVCs."""
        number, chance = self._random.randint(0, 2), self._random.random()
        if chance < 0.3:
            self._delete("pod", f"store-{number}")
        elif chance < 0.5:
            self._delete("pvc", f"data-store-{number}")
            self._delete("pod", f"store-{number}")
        else:
            self._apply(self._database_of(number))

    def _database_of(self, replicas: int) -> Json:
        spec: Json = {
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "serviceName": "store",
            "volumeClaimTemplates": [
                {"metadata": {"name": "data"}, "spec": _claim_spec(self._classes[0])}
            ],
        }
        return self._controller("StatefulSet", "store", spec, _storing())

    def _volume(self) -> None:
        """Creates a PVC and its pod."""
        number = self._random.choice(_NUMBERS)
        name = f"disk-{number}"
        spec = _claim_spec(self._classes[number % 2])
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
        pod = self._placed(_pod_of(_storing(), volumes=[volume]))
        claim = {**_object("v1", "PersistentVolumeClaim", name), "spec": spec}
        self._apply(claim, self._object("Pod", f"stores-{number}", spec=pod))

    def _delete_volume(self) -> None:
        number = self._random.choice(_NUMBERS)
        self._delete("pvc", f"disk-{number}")
        self._delete("pod", f"stores-{number}")

    def _controller(self, kind: str, name: str, spec: Json, container: Json) -> Json:
        labels = {"app": name}
        template: Json = {
            "metadata": {"labels": labels},
            "spec": self._placed({"containers": [{"name": "main", **container}]}),
        }
        spec = {**spec, "selector": {"matchLabels": labels}, "template": template}
        return {**_object("apps/v1", kind, name), "spec": spec}

    def _job(self) -> None:
        """Creates a Job that succeeds: several pods, by index, or at a container's second try."""
        self._jobs += 1
        script, restart, spec = self._random.choice(_JOBS)
        pod = {
            "restartPolicy": restart,
            "containers": [{"name": "main", "volumeMounts": [_MOUNT], **_shell(script)}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        }
        job = {**_object("batch/v1", "Job", f"job-{self._jobs}")}
        self._apply({**job, "spec": {**spec, "template": {"spec": self._placed(pod)}}})

    def _delete_job(self) -> None:
        if self._jobs:
            self._delete("job", f"job-{self._random.randint(1, self._jobs)}")

    # -- commands ----------------------------------------------------------------------------

    def _placed(self, spec: Json) -> Json:
        return {
            "nodeSelector": {"kubernetes.io/hostname": self._bridged.node},
            "tolerations": [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}],
            "terminationGracePeriodSeconds": 2,
            **spec,
        }

    def _object(self, kind: str, name: str, **fields: Any) -> Json:
        made = _object("v1", kind, name)
        made["metadata"]["labels"] = {"app": name.rpartition("-")[0]}
        return made | fields

    def _apply(self, *objects: Json) -> None:
        names = ", ".join(f"{o['kind']} {o['metadata']['name']}" for o in objects)
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self._run(f"apply {names}", "apply", "-f", "-", input=manifest)

    def _delete(self, kind: str, name: str, *, grace: int | None = None) -> None:
        args = ["delete", kind, name, "--wait=false"]
        if grace is not None:
            args += [f"--grace-period={grace}"] + (["--force"] if grace == 0 else [])
        self._kubectl(*args)

    def _kubectl(self, *args: str) -> None:
        self._run(" ".join(args), *args)

    def _run(
        self,
        what: str,
        *args: str,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        remote: bool = False,
    ) -> None:
        """Runs kubectl; records rejections that other changes caused."""
        cluster, namespace = self._bridged.home, self._bridged.namespace
        if remote:
            cluster, namespace = self._bridged.remote, self._bridged.remote_namespace
        result = cluster.kubectl("-n", namespace, *args, check=False, input=input)
        refused = result.returncode != 0
        self.note(what + (" (refused)" if refused else ""))
        lines = [line for line in result.stderr.splitlines() if line and "arning" not in line]
        # NB: an existing pod cannot become another one; `apply` changes its mutable fields.
        immutable = [line for line in lines if "Forbidden: pod updates may not change" in line]
        expected = _REFUSALS + (_AWAY if self.lenient else ())
        if refused and not immutable and not any(word in result.stderr for word in expected):
            raise CommandFailed(result.stderr, where=what)

    def note(self, step: str) -> None:
        """Records an event between the steps."""
        line = f"{time.monotonic() - self._begin:6.1f} {step}"
        self.steps.append(line)
        self._say(line)


def jobs_are_done(bridged: Bridged) -> bool:
    """Whether every Job that is not being deleted has all of its completions."""
    jobs = get(bridged.home, "jobs", namespace=bridged.namespace)
    return all(
        job["status"].get("succeeded") == job["spec"]["completions"]
        for job in jobs
        if "deletionTimestamp" not in job["metadata"]
    )


# -- objects ---------------------------------------------------------------------------------

_NUMBERS = range(4)
_MOUNT = {"name": "scratch", "mountPath": "/scratch"}


def _object(version: str, kind: str, name: str) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _config(prefix: str, number: int) -> Json:
    return {**_object("v1", "ConfigMap", f"{prefix}-{number}"), "data": {"KEY": "first"}}


def _secret(number: int) -> Json:
    return {**_object("v1", "Secret", f"key-{number}"), "stringData": {"KEY": "first"}}


def _shell(script: str) -> Json:
    return {"image": BUSYBOX, "command": ["sh", "-c", script]}


def _cpu(thousandths: int) -> Json:
    return {"cpu": f"{thousandths}m"}


def _sleeping() -> Json:
    return _shell("trap 'exit 0' TERM; sleep 3600 & wait")


def _storing() -> Json:
    """Writes the token that the audit reads, unless the volume has one."""
    script = f"{WRITE}; trap 'exit 0' TERM; sleep 3600 & wait"
    return {**_shell(script), "volumeMounts": [{"name": "data", "mountPath": "/data"}]}


def _claim_spec(storage_class: str) -> Json:
    return {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "8Mi"}},
    }


def _pod_of(container: Json, *, restart: str = "Always", **spec: Any) -> Json:
    return {"restartPolicy": restart, "containers": [{"name": "main", **container}], **spec}


def _reads(source: random.Random) -> Json:
    """Uses a ConfigMap and a Secret as environment, and the Secret as files."""
    number = source.choice(_NUMBERS)
    secret = f"key-{source.choice(_NUMBERS)}"
    environment = [{"configMapRef": {"name": f"conf-{number}"}}, {"secretRef": {"name": secret}}]
    container = {**_sleeping(), "envFrom": environment, "volumeMounts": [_MOUNT]}
    volumes = [{"name": "scratch", "secret": {"secretName": secret}}]
    return _pod_of(container, volumes=volumes)


def _waits(source: random.Random) -> Json:
    """Cannot start before its ConfigMap exists."""
    late = {"configMapRef": {"name": f"late-{source.choice(_NUMBERS)}"}}
    return _pod_of({**_sleeping(), "envFrom": [late]})


_FLAVOURS: dict[str, Callable[[random.Random], Json]] = {
    "runs": lambda _: _pod_of({**_sleeping(), "resources": {"requests": _cpu(10)}}),
    "reads": _reads,
    "waits": _waits,
    "crashes": lambda _: _pod_of(_shell("sleep 1; exit 1")),
    "once": lambda _: _pod_of(_shell("sleep 2"), restart="Never"),
    "fails": lambda _: _pod_of(_shell("sleep 1; exit 3"), restart="Never"),
    "lasts": lambda _: _pod_of(_sleeping(), restart="Never"),
    "stubborn": lambda _: _pod_of(
        _shell("trap '' TERM; while :; do sleep 1; done"), terminationGracePeriodSeconds=8
    ),
}
#: Script, restartPolicy, spec.
_JOBS: tuple[tuple[str, str, Json], ...] = (
    ("sleep 1", "Never", {"completions": 2, "parallelism": 2}),
    (
        'test -n "$JOB_COMPLETION_INDEX"',
        "Never",
        {"completions": 3, "parallelism": 3, "completionMode": "Indexed"},
    ),
    ("test -e /scratch/x || { touch /scratch/x; exit 1; }", "OnFailure", {"completions": 1}),
)
