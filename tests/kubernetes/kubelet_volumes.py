"""The volumes of a pod, as folders of this machine."""

import base64
import os


def write_volumes(core, pod, folder):
    """Write each Secret that the pod mounts, with the mode that it asks for."""
    for volume in pod.spec.volumes or ():
        target = folder / volume.name
        target.mkdir(parents=True, exist_ok=True)
        if volume.secret is None:
            continue
        secret = core.read_namespaced_secret(volume.secret.secret_name, pod.metadata.namespace)
        for name, text in (secret.data or {}).items():
            path = target / name
            path.write_bytes(base64.b64decode(text))
            path.chmod(volume.secret.default_mode)
            if group := pod.spec.security_context.fs_group:
                os.chown(path, 0, group)
                path.chmod(volume.secret.default_mode | 0o040)


def mounts_of(container, folder):
    """Pairs of a folder here and one in the container."""
    return [(folder / mount.name, mount.mount_path) for mount in container.volume_mounts or ()]
