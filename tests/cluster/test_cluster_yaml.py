"""cluster.yaml: accepted by Ray's own schema, one set of versions, nothing open to the world, nothing that costs in secret.

No cluster is started and no cloud is asked. That the file works on a real account is not shown here.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "cluster.yaml"
ALL_ADDRESSES = re.compile(r"(?<!\d)0\.0\.0\.0")
TEXT = FILE.read_text(encoding="utf-8")


def ray_folder() -> Path:
    found = importlib.util.find_spec("ray")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@pytest.fixture
def config() -> dict[str, Any]:
    loaded = yaml.safe_load(TEXT)
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    loaded = json.loads((ray_folder() / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def workers(config: dict[str, Any]) -> dict[str, Any]:
    return {name: kind for name, kind in config["available_node_types"].items() if name != config["head_node_type"]}


def commands(config: dict[str, Any], *names: str) -> str:
    return "\n".join(command for name in names for command in config[name])


HEAD = ("setup_commands", "head_setup_commands", "head_start_ray_commands")
WORKER = ("setup_commands", "worker_setup_commands", "worker_start_ray_commands")


def test_ray_accepts_the_file(config: dict[str, Any], schema: dict[str, Any]) -> None:
    jsonschema.validate(config, schema)


def test_rays_schema_would_notice_a_misspelt_key(config: dict[str, Any], schema: dict[str, Any]) -> None:
    assert schema["additionalProperties"] is False
    for key in ("min_worker", "target_utilization_fraction", "head_node"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**config, key: 1}, schema)


def test_rays_own_preparation_accepts_it_and_changes_no_command(config: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    assert prepared["head_setup_commands"] == config["setup_commands"] + config["head_setup_commands"]
    assert prepared["worker_setup_commands"] == config["setup_commands"] + config["worker_setup_commands"]
    for name in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert prepared[name] == config[name]
    assert not ALL_ADDRESSES.search(json.dumps(prepared))
    assert ".whl" not in json.dumps(prepared), "Ray's defaults would install a development wheel"
    assert prepared["available_node_types"]["head"]["max_workers"] == 0


def test_every_default_of_ray_that_harms_is_overridden(config: dict[str, Any]) -> None:
    expected = {
        "setup_commands",
        "head_setup_commands",
        "worker_setup_commands",
        "head_start_ray_commands",
        "worker_start_ray_commands",
    }
    assert expected <= set(config)
    assert config["provider"]["cache_stopped_nodes"] is False
    assert config["idle_timeout_minutes"] >= 15


def test_one_cloud_and_its_zones_lie_in_its_region(config: dict[str, Any]) -> None:
    provider = config["provider"]
    assert provider["type"] == "aws"
    assert all(zone.startswith(provider["region"]) for zone in provider["availability_zone"].split(","))


def test_the_head_takes_no_work_and_workers_are_spot_gpus(config: dict[str, Any]) -> None:
    head = config["available_node_types"][config["head_node_type"]]
    assert head["resources"] == {"CPU": 0}
    assert "InstanceMarketOptions" not in head["node_config"], "a head that is taken back ends the sweep"
    assert workers(config)
    for kind in workers(config).values():
        assert kind["resources"]["GPU"] == 1
        assert kind["resources"]["CPU"] >= 1
        assert kind["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
        assert kind["node_config"]["InstanceType"] == "g5.xlarge"


def test_there_is_room_for_the_workers(config: dict[str, Any]) -> None:
    kinds = workers(config).values()
    assert all(0 < kind["min_workers"] <= kind["max_workers"] for kind in kinds)
    assert sum(kind["min_workers"] for kind in kinds) <= config["max_workers"]
    assert config["max_workers"] <= sum(kind["max_workers"] for kind in kinds)


def test_all_machines_have_one_image_and_disks_that_go_with_them(config: dict[str, Any]) -> None:
    nodes = [kind["node_config"] for kind in config["available_node_types"].values()]
    assert len({node["ImageId"] for node in nodes}) == 1
    for node in nodes:
        (disk,) = node["BlockDeviceMappings"]
        assert disk["Ebs"]["VolumeSize"] >= 100
        assert disk["Ebs"]["DeleteOnTermination"] is True


def test_the_image_says_that_it_must_be_replaced(config: dict[str, Any]) -> None:
    image = config["available_node_types"]["head"]["node_config"]["ImageId"]
    before = TEXT[: TEXT.index(image)]
    assert "REPLACE" in before[-600:]
    assert f"--region {config['provider']['region']}" in before[-600:]


def pins(text: str) -> dict[str, set[str]]:
    """Each package that is pinned with == and all versions named."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^\s*\"?([A-Za-z][\w.-]*)(?:\[[^\]]*\])?==([^\s\";]+)", re.sub(r"\s\"", '\n"', text), re.MULTILINE
    ):
        found.setdefault(name.lower(), set()).add(version)
    return found


def test_head_and_workers_get_the_same_versions_from_the_same_commands(config: dict[str, Any]) -> None:
    common = commands(config, "setup_commands")
    for name in ("ray", "torch"):
        assert len(pins(common)[name]) == 1
    (python,) = re.findall(r"--python (\S*\d\S*)", common)
    assert re.fullmatch(r"3\.\d+\.\d+", python), "Ray refuses a worker whose Python differs in the patch"
    rest = commands(config, *HEAD[1:], *WORKER[1:])
    assert pins(rest).keys().isdisjoint({"ray", "torch"})
    assert not re.search(r"--python 3", rest)


def test_the_versions_are_those_that_the_project_is_tested_with(config: dict[str, Any]) -> None:
    constraints = ROOT / "constraints.txt"
    if not constraints.exists():
        pytest.skip("constraints.txt is not there")
    tested, used = pins(constraints.read_text(encoding="utf-8")), pins(commands(config, "setup_commands"))
    for name in ("ray", "torch"):
        assert used[name] == tested[name]


def test_the_dashboard_listens_on_loopback_and_nothing_on_all_addresses(config: dict[str, Any]) -> None:
    assert "--dashboard-host=127.0.0.1" in commands(config, "head_start_ray_commands")
    assert not ALL_ADDRESSES.search(TEXT)
    assert "=::" not in json.dumps(config), "all addresses, as IPv6 writes them"
    assert "security_group" not in config["provider"], "Ray's own group opens ssh and nothing else"


def test_both_sides_say_how_they_authenticate(config: dict[str, Any]) -> None:
    modes = [set(re.findall(r"RAY_AUTH_MODE=(\w+)", commands(config, *names))) for names in (HEAD, WORKER)]
    assert modes[0] == modes[1]
    assert len(modes[0]) == 1


def test_the_project_travels_without_what_is_built_or_downloaded(config: dict[str, Any]) -> None:
    assert config["file_mounts"] == {"~/raysweep": "."}
    assert {"/.venv/", "/results/", "/.git/"} <= set(config["rsync_exclude"])
    assert "--editable ." in commands(config, "setup_commands")


def test_every_machine_sees_one_storage(config: dict[str, Any]) -> None:
    head, worker = commands(config, *HEAD), commands(config, *WORKER)
    assert "/mnt/raysweep" in head
    assert '"$RAY_HEAD_IP:/mnt/raysweep" /mnt/raysweep' in worker
    assert "(rw," in head
    for network in re.findall(r"\d+\.\d+\.\d+\.\d+/\d+", head):
        assert network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"), "exported to private addresses only"


def test_ulimit_is_no_condition_for_the_start(config: dict[str, Any]) -> None:
    for text in (commands(config, *HEAD), commands(config, *WORKER)):
        assert "ulimit -n 65536;" in text


def test_the_guide_does_not_claim_more_than_was_tried() -> None:
    guide = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert "Not yet proved on a real cloud account" in guide
    for command in (
        "ray up cluster.yaml",
        "ray down cluster.yaml",
        "ray dashboard cluster.yaml",
        "ray rsync-down cluster.yaml",
        "--no-restart",
    ):
        assert command in guide
