"""A real Kubernetes control plane on this machine: etcd, API server, controllers, scheduler."""

import os
import secrets
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import yaml

from tests.engines.harness.packages import find
from tests.engines.harness.runs import claimed
from tests.engines.harness.waiting import Daemon, accepts, run

HERE = "127.0.0.1"
START_S = 120.0
# On by default since 1.21.
FEATURES = "--feature-gates=TTLAfterFinished=true"
CONTROLLERS = "job,garbagecollector,namespace,serviceaccount,serviceaccount-token,resourcequota"
# No controller of nodes runs, which would take away the taint that a new node gets.
WITHOUT = "--disable-admission-plugins=TaintNodesByCondition"


class ControlPlane:
    """Started on entry, with ``kubeconfig`` for an administrator; nothing of it stays."""

    def __enter__(self):
        with ExitStack() as stack:
            self._claim = stack.enter_context(claimed())
            self.folder = self._claim.folder
            self._daemons = []
            stack.callback(lambda: [daemon.kill() for daemon in self._daemons])
            self.bin = Path(subprocess.check_output([BUILD], text=True).strip())
            self.etcd_port, peer_port, self.port, *self._ports = free_ports(5)
            self.token = secrets.token_hex()
            self._write_files()
            self._start_etcd(peer_port)
            self._start_api_server()
            self._start_controllers()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc):
        self._stack.close()

    @property
    def env(self):
        """For everything that is to end with the control plane."""
        return {**os.environ, **self._claim.env}

    @property
    def kubeconfig(self):
        return self.folder / "kubeconfig"

    def kubectl(self, *arguments, input=None, namespace="default"):
        """What kubectl prints."""
        base = [self.bin / "kubectl", "--kubeconfig", self.kubeconfig, "--namespace", namespace]
        return run([*map(str, base), *arguments], input=input, timeout_s=60.0)

    def write_kubeconfig(self, path, token, namespace="default"):
        """A configuration for the one whose token this is."""
        cluster = {
            "server": f"https://{HERE}:{self.port}",
            "certificate-authority": str(self.folder / "tls.crt"),
        }
        context = {"cluster": "here", "user": "me", "namespace": namespace}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "here", "cluster": cluster}],
                    "users": [{"name": "me", "user": {"token": token}}],
                    "contexts": [{"name": "here", "context": context}],
                    "current-context": "here",
                }
            )
        )

    def _write_files(self):
        self.write_kubeconfig(self.kubeconfig, self.token)
        folder = self.folder
        (folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        tls = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes"]
        names = f"subjectAltName=IP:{HERE},DNS:kubernetes.default.svc"
        files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
        run(["openssl", "req", "-x509", *tls, "-addext", names, *files])

    def _daemon(self, program, *arguments):
        log = self.folder / f"{Path(program).name}.log"
        self._daemons.append(Daemon([str(program), *map(str, arguments)], log, self.env))
        return self._daemons[-1]

    def _start_etcd(self, peer_port):
        client, peer = f"http://{HERE}:{self.etcd_port}", f"http://{HERE}:{peer_port}"
        daemon = self._daemon(
            find("etcd"),
            *("--data-dir", self.folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )
        daemon.wait_until(lambda: accepts(HERE, self.etcd_port), "etcd listens", START_S)

    def _start_api_server(self):
        folder = self.folder
        daemon = self._daemon(
            self.bin / "kube-apiserver",
            f"--etcd-servers=http://{HERE}:{self.etcd_port}",
            *(f"--bind-address={HERE}", f"--secure-port={self.port}"),
            *(f"--tls-cert-file={folder}/tls.crt", f"--tls-private-key-file={folder}/tls.key"),
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/tls.key",
            f"--service-account-signing-key-file={folder}/tls.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            *(FEATURES, WITHOUT),
        )
        daemon.wait_until(self._is_ready, "the API server is ready", START_S)

    def _is_ready(self):
        try:
            return self.kubectl("get", "--raw", "/readyz") == "ok"
        except RuntimeError:
            return False

    def _start_controllers(self):
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--port=0"]
        manager, scheduler = self._ports
        self._daemon(
            self.bin / "kube-controller-manager",
            *common,
            *(f"--bind-address={HERE}", f"--secure-port={manager}", f"--cert-dir={self.folder}"),
            f"--service-account-private-key-file={self.folder}/tls.key",
            f"--root-ca-file={self.folder}/tls.crt",
            f"--controllers={CONTROLLERS},ttl-after-finished",
            FEATURES,
        )
        self._daemon(
            self.bin / "kube-scheduler",
            *common,
            *(f"--bind-address={HERE}", f"--secure-port={scheduler}", f"--cert-dir={self.folder}"),
            FEATURES,
        )


BUILD = str(Path(__file__).with_name("build.sh"))


def free_ports(count):
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HERE, 0))
        return [one.getsockname()[1] for one in sockets]
