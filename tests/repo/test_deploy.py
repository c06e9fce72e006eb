"""The container file and the examples beside it: what they say fits the program, and each other."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from attendo.cli import build_app

yaml = pytest.importorskip("yaml")
pytest.importorskip("fastapi", reason='serving is not installed: pip install "attendo[serve]"')

from attendo.serving import app  # noqa: E402
from attendo.serving.run import KEEP_ALIVE  # noqa: E402
from attendo.serving.state import ServingConfig  # noqa: E402

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
OBJECTS = {
    found["kind"]: found for found in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
NGINX = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")


def instruction(name):
    """The last one of this name in the container file."""
    return re.findall(rf"^(?:    )?{name} (.*)$", CONTAINERFILE, re.MULTILINE)[-1]


def options_of(command):
    """The options of `attendo serve` with these words, as its own parser reads them."""
    assert command[0] == "serve"
    serve = typer.main.get_command(build_app()).commands["serve"]  # pyright: ignore[reportAttributeAccessIssue]
    return serve.make_context("serve", list(command[1:])).params


COMMANDS = {
    "Containerfile": json.loads(instruction("CMD")),
    "compose.yaml": COMPOSE["services"]["attendo"]["command"],
    "kubernetes.yaml": CONTAINER["args"],
}


@pytest.mark.parametrize("file", COMMANDS)
def test_the_program_takes_the_command_and_asks_for_a_key(file):
    options = options_of(COMMANDS[file])
    assert options["host"] == "0.0.0.0"
    assert options["port"] == 8000
    assert options["api_key_file"] is not None
    assert not options["no_key"]
    assert [str(folder) for folder in options["folders"]] == ["/models/mine"]


def test_the_process_itself_is_told_to_stop_and_is_nobody():
    assert json.loads(instruction("ENTRYPOINT")) == ["attendo"]
    assert int(instruction("USER")) == POD["securityContext"]["runAsUser"] != 0
    assert instruction("EXPOSE") == "8000"
    assert "/livez" in CONTAINERFILE
    check = json.loads(re.findall(r"^    CMD (.*)$", CONTAINERFILE, re.MULTILINE)[0])
    compile(check[2], "HEALTHCHECK", "exec")


def test_versions_are_the_locks_and_no_image_is_the_latest():
    images = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)
    images += [service["image"] for service in COMPOSE["services"].values()] + [CONTAINER["image"]]
    for image in images:
        _, _, tag = image.rpartition(":")
        assert re.match(r"\d+\.\d+", tag), image
    assert "requirements.lock" in CONTAINERFILE
    assert "--constraint requirements-dev.lock" in CONTAINERFILE
    lock = (DEPLOY.parent / "requirements.lock").read_text(encoding="utf-8")
    assert len(re.findall(r"^torch==[0-9.]*", lock, re.MULTILINE)) == 1  # what the build greps
    for source in re.findall(r"^COPY ((?!--from).*) \S+$", CONTAINERFILE, re.MULTILINE):
        for name in shlex.split(source):
            assert (DEPLOY.parent / name).exists(), name


def test_there_is_time_to_drain():
    drain = options_of(CONTAINER["args"])["drain"]
    assert drain >= 1
    assert POD["terminationGracePeriodSeconds"] > drain + CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert (
        int(COMPOSE["services"]["attendo"]["stop_grace_period"].removesuffix("s"))
        > options_of(COMMANDS["compose.yaml"])["drain"]
    )


def test_kubernetes_asks_what_needs_no_key():
    asked = [CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")]
    assert asked == ["/livez", "/readyz"]
    assert set(asked) <= app.PUBLIC
    (endpoint,) = OBJECTS["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["path"] in app.EARLY - app.PUBLIC
    secret = POD["volumes"][1]["secret"]["secretName"]
    assert endpoint["authorization"]["credentials"]["name"] == secret
    wanted = OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"]
    assert OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"] == wanted
    assert OBJECTS["Service"]["spec"]["selector"] == wanted
    for kind in ("NetworkPolicy", "PodDisruptionBudget", "ServiceMonitor"):
        spec = OBJECTS[kind]["spec"]
        assert spec.get("podSelector", spec.get("selector"))["matchLabels"] == wanted


def test_what_is_written_is_written_to_volumes():
    mounts = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    assert [path for path, mount in mounts.items() if not mount.get("readOnly")] == ["/cache", "/tmp"]
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in POD["volumes"]}
    server = COMPOSE["services"]["attendo"]
    assert server["read_only"]
    assert [line.split(":")[0] for line in server["tmpfs"]] == ["/tmp", "/cache"]
    assert "ATTENDO_CACHE=/cache" in CONTAINERFILE


def test_the_balancer_has_the_servers_limits():
    config = ServingConfig()
    assert f"client_max_body_size {config.max_body >> 20}m;" in NGINX

    def seconds(name):
        return int(re.search(rf"\b{name} (\d+)s;", NGINX)[1])  # pyright: ignore[reportOptionalSubscript]

    assert seconds("proxy_read_timeout") > config.timeout
    assert seconds("keepalive_timeout") < KEEP_ALIVE
    assert NGINX.count("{") == NGINX.count("}")
