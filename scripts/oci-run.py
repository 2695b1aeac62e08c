#!/usr/bin/env python3
"""Run one program in a fresh OCI container, with runc or runsc, as hardened as both allow.

usage: oci-run.py runc|runsc WORKSPACE PROBE PROGRAM [ARGUMENT...]

For the comparison only (`make compare`). The bundle is the output of `runc spec`, with Docker's additions (seccomp profile, masked and
read-only paths) and what its documentation recommends: no capability, no_new_privs, a user namespace with its own range, an
ordinary user, a read-only root, no network, limits. WORKSPACE is owned by the container's user and mounted at /workspace, PROBE at /probe.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

FIRST_ID, IDS = 1_000_000, 65_536
USER = 1000
# Docker's default profile, installed by `scripts/setup.sh compare`.
PROFILE = pathlib.Path(__file__).parent.parent / "target/compare/docker-seccomp.json"
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main():
    runtime, workspace, probe, *program = sys.argv[1:]
    os.environ["PATH"] = SEARCH
    bundle = pathlib.Path(tempfile.mkdtemp(prefix="saggar-oci-"))
    bundle.chmod(0o755)
    name = bundle.name
    try:
        fill(bundle / "rootfs")
        give(workspace)
        subprocess.run(["runc", "spec", "--bundle", bundle], check=True)
        config = json.loads((bundle / "config.json").read_text())
        harden(config, runtime, workspace, probe, program)
        (bundle / "config.json").write_text(json.dumps(config))
        command = [*started(runtime, bundle), "run", "--bundle", str(bundle), name]
        # Inherited descriptors are passed on: it is the runtime's task to keep them from the program.
        return subprocess.run(command, close_fds=False).returncode
    finally:
        subprocess.run([*started(runtime, bundle), "delete", "--force", name], capture_output=True)
        shutil.rmtree(bundle, ignore_errors=True)


def started(runtime, bundle):
    state = ["--root", str(bundle / "state")]
    if runtime == "runc":
        return ["runc", *state]
    return ["runsc", *state, "--network=none", f"--platform={os.environ.get('RUNSC_PLATFORM', 'ptrace')}"]


def fill(rootfs):
    rootfs.mkdir()
    for name in ["bin", "sbin", "lib", "lib64"]:
        host = pathlib.Path("/") / name
        if host.is_symlink():
            (rootfs / name).symlink_to(os.readlink(host))
    for name in ["usr", "etc", "proc", "dev", "sys", "tmp", "run", "var", "home/user", "workspace", "probe"]:
        (rootfs / name).mkdir(parents=True)
    (rootfs / "etc/passwd").write_text(f"root:x:0:0:root:/root:/bin/sh\nuser:x:{USER}:{USER}:user:/home/user:/bin/sh\n")
    (rootfs / "etc/group").write_text(f"root:x:0:\nuser:x:{USER}:\n")


def give(workspace):
    """A fixture in a temporary directory, so everything below it may be the container's."""
    inside = FIRST_ID + USER
    # runsc opens its mounts as the container's root, which needs access to the path.
    os.chmod(os.path.dirname(workspace), 0o711)
    os.chown(workspace, inside, inside)
    for directory, directories, files in os.walk(workspace):
        for name in directories + files:
            os.chown(os.path.join(directory, name), inside, inside, follow_symlinks=False)


def harden(config, runtime, workspace, probe, program):
    process, linux = config["process"], config["linux"]
    environment = {"PATH": SEARCH, "HOME": "/home/user", "USER": "user", "LANG": "C.UTF-8"}
    process.update(
        terminal=False,
        args=program,
        user={"uid": USER, "gid": USER},
        cwd="/workspace",
        env=[f"{key}={value}" for key, value in environment.items()],
        capabilities={kind: [] for kind in ["bounding", "effective", "permitted", "inheritable", "ambient"]},
        noNewPrivileges=True,
        rlimits=[limit("NOFILE", 1024), limit("CORE", 0)],
    )
    config["root"] = {"path": "rootfs", "readonly": True}
    config["hostname"] = "sandbox"
    config["mounts"] += [
        bind("/usr", "/usr", "ro"),
        bind(probe, "/probe", "ro"),
        bind(workspace, "/workspace", "rw"),
        scratch("/tmp", "1777"),
        scratch("/home/user", "755", f"uid={USER}", f"gid={USER}"),
    ]
    present = {namespace["type"] for namespace in linux["namespaces"]}
    linux["namespaces"] += [{"type": kind} for kind in ["user", "cgroup"] if kind not in present]
    linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": FIRST_ID, "size": IDS}]
    linux["resources"].update(
        memory={"limit": 2 << 30}, pids={"limit": 512}, cpu={"quota": 200_000, "period": 100_000}
    )
    if runtime == "runc":
        # runsc has its own filter around its kernel, and ignores this one by design.
        linux["seccomp"] = filtered(json.loads(PROFILE.read_text()))


def limit(name, value):
    return {"type": f"RLIMIT_{name}", "hard": value, "soft": value}


def bind(source, destination, access):
    options = ["rbind", access, "nosuid", "nodev"]
    return {"destination": destination, "source": source, "type": "bind", "options": options}


def scratch(destination, mode, *options):
    options = ["nosuid", "nodev", f"mode={mode}", "size=1g", *options]
    return {"destination": destination, "source": "tmpfs", "type": "tmpfs", "options": options}


def filtered(profile):
    """The profile as it applies to a program without capabilities on x86-64."""
    rules = []
    for rule in profile["syscalls"]:
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        if includes.get("caps") or not wanted(includes.get("arches")) or "amd64" in (excludes.get("arches") or []):
            continue
        kept = {"names": rule["names"], "action": rule["action"]}
        if rule.get("args"):
            kept["args"] = rule["args"]
        if rule.get("errnoRet") is not None:
            kept["errnoRet"] = rule["errnoRet"]
        rules.append(kept)
    result = {"defaultAction": profile["defaultAction"], "syscalls": rules}
    if profile.get("defaultErrnoRet") is not None:
        result["defaultErrnoRet"] = profile["defaultErrnoRet"]
    result["architectures"] = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    return result


def wanted(architectures):
    return not architectures or "amd64" in architectures or "x86_64" in architectures


if __name__ == "__main__":
    # Remove the container that we created, also after a signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
