"""The benchmarks run (nothing here looks at a time), and what they compare is the same work."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks import growth, kernels, listing
from benchmarks.__main__ import app, main
from benchmarks.cohort import real_cohort
from benchmarks.output import ratios
from benchmarks.reference import StarModel, client_update, privatize, run_round
from benchmarks.setup import configuration
from fastpfrec_flwr.client.build import build_mechanism
from fastpfrec_flwr.client.plan import plan_cohort


def cohort_of(**changes):
    return real_cohort(configuration("synthetic", "", num_negatives=24, embedding_dim=16, **changes), 20)


@pytest.mark.parametrize(
    "changes", [{}, {"loss": "ccl", "unit_rows": True}, {"leave_one_out": False, "l2": 0.0}], ids=str
)
def test_the_straightforward_loop_does_what_the_cohort_does(changes):
    cohort = cohort_of(**changes)
    together = cohort.train(1)
    model = StarModel(*cohort.table.shape)
    with torch.no_grad():
        model.items.weight.copy_(torch.from_numpy(cohort.table))
    for user, client in enumerate(cohort.clients()):
        change, private = client_update(model, client, torch.from_numpy(cohort.weights), cohort.config, refresh=False)
        whole = np.zeros_like(cohort.table)
        mine = slice(together.pointer[user], together.pointer[user + 1])
        whole[together.rows[mine]] = together.changes[mine]
        np.testing.assert_allclose(change["items.weight"].numpy(), whole, rtol=2e-3, atol=2e-4 * np.abs(whole).max())
        np.testing.assert_allclose(private.numpy(), together.private[user], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"l2": 0.5, "user_l2": 0.1}, {"perturbation": "none"}], ids=str)
def test_all_ways_of_the_local_step_do_the_same(changes):
    cohort = cohort_of(**changes)
    plan = plan_cohort(cohort.graphs, cohort.keys, True, 24)
    steps = kernels.ways(cohort, plan, 1, compiler=False)
    assert list(steps) == ["compiled", "autograd", "operators"]
    right, moved = steps.pop("compiled")()
    for step in steps.values():
        other, other_moved = step()
        np.testing.assert_allclose(other, right, rtol=1e-4, atol=1e-5 * np.abs(right).max())
        np.testing.assert_allclose(other_moved, moved, rtol=1e-4, atol=1e-6)


def test_and_its_round_is_the_mean_of_clipped_changes():
    cohort = cohort_of(noise="none", noise_scale=0.0, upload="dense", row_clip=0.5, clip_norm=1.0)
    moved = run_round(cohort.table, cohort.clients(), cohort.weights, cohort.config, refresh=False)
    uploads = build_mechanism(cohort.config, 1).privatize(cohort.train(1), cohort.keys, None, len(cohort.table))
    total = np.zeros_like(cohort.table)
    np.add.at(total, uploads.rows, uploads.values)
    np.testing.assert_allclose(moved, cohort.table + total / 20, atol=1e-5)
    assert np.abs(total).max() > 0.01


def test_and_its_noise_is_laplace():
    config = configuration("synthetic", "", row_clip=0.0, clip_norm=0.0, noise_scale=0.1)
    zero = {"items.weight": torch.zeros(1000, 100)}
    noise = privatize(zero, config, torch.Generator().manual_seed(1))["items.weight"].double()
    assert noise.mean().abs() < 0.002
    assert noise.square().mean() == pytest.approx(2 * 0.1**2, rel=0.03)
    assert noise.abs().mean() == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["round", "--clients", "32", "--rounds", "2"], {"clients": 32}),
        (["phases", "--clients", "32", "--rounds", "2"], {"clients": 32}),
        (
            ["kernels", "--clients", "8", "--repeats", "2", "--no-torch-compile", "--negatives", "24"],
            {"way": "operators"},
        ),
        (["reference", "--clients", "8", "--repeats", "2"], {"kind": "cohort"}),
        (["central", "--clients", "32", "--repeats", "2", "--batch", "100"], {"kind": "rounds of all users"}),
        (["evaluation", "--repeats", "1"], {}),
        (["memory", "--data-set", "synthetic", "--rounds", "10"], {"round": 10}),
        (["startup", "--repeats", "1"], {"what": "open synthetic again"}),
        (["growth", "--quick", "--rounds", "2"], {"dimensions": 16}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_benchmark_runs_and_compares_with_itself(tmp_path, command, expected):
    out = tmp_path / "figures.json"
    own = command if command[0] in ("memory", "growth") else [*command, "--data-sets", "synthetic"]
    result = CliRunner().invoke(app, [*own, "--output", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    content = json.loads(out.read_text())
    assert content["threads"] >= 1
    assert content["machine"]
    assert "flwr" in content["versions"]
    line = content["figures"][-1]
    assert expected.items() <= line.items()
    same = ratios(content["figures"], content["figures"])
    assert {value for each in same for key, value in each.items() if key.endswith("ratio")} == {1.0}
    if command[0] == "phases":
        named = {each["phase"]: each["median_ms"] for each in content["figures"]}
        assert {"local training", "clip and noise", "check", "node mean", "average", "server step"} < set(named)
        assert all(value > 0 for value in named.values())


def test_ratios_join_lines_of_the_same_subject():
    old = [{"data_set": "a", "median_ms": 4.0}, {"data_set": "b", "median_ms": 1.0}]
    new = [{"data_set": "b", "median_ms": 3.0}, {"data_set": "c", "median_ms": 9.0}]
    assert ratios(old, new) == [{"data_set": "b", "median_ms ratio": 3.0}]
    with pytest.raises(ValueError, match="different benchmarks"):
        ratios(old, new[1:])


def test_exponents_are_those_of_a_power_law(tmp_path):
    def line(**changes):
        point = {**growth.BASE, **changes}
        cost = 3.0 * point["items"] ** 1.0 * point["clients"] ** 0.5
        return {**point, "cpu_ms": cost, "memory_mb": point["users"] ** 2.0, "up_mb": 7.0}

    lines = [line(**{name: value}) for name, steps in growth.STEPS.items() for value in steps]
    found = {each["cost against"]: each for each in growth.exponents(lines)}
    assert set(found) == set(growth.STEPS)
    assert found["items"]["cpu_ms"] == pytest.approx(1.0)
    assert found["clients"]["cpu_ms"] == pytest.approx(0.5)
    assert found["users"]["memory_mb"] == pytest.approx(2.0)
    assert found["users"]["cpu_ms"] == pytest.approx(0.0, abs=1e-9)
    assert all(each["cpu_ms off by"] < 1e-9 for each in found.values())
    growth.plot(lines, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_each_point_of_the_growth_differs_from_the_base_in_one_thing():
    for point in growth.points():
        assert sum(point[name] != growth.BASE[name] for name in growth.BASE) <= 1
    assert len(growth.points()) == 1 + sum(len(steps) - 1 for steps in growth.STEPS.values())


def test_lists_of_every_length_of_history_are_timed(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["listing", "--items", "1200", "--dim", "4", "--lists", "2"])
    listing.main()
    head, columns, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("1200 items, 4 dimensions")
    assert len(columns.split()) == 7
    assert [int(line.split()[0]) for line in lines] == [1, 27, 200, 1000]
    assert all(float(value) > 0 for line in lines for value in line.split()[1:3])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["round", "--clients", "10"], "no SuperNode can take part: data-set '/nowhere': no named data set"),
        (["startup", "--repeats", "1"], "data-set '/nowhere': no named data set"),  # a process of its own opens it
    ],
)
def test_what_can_be_foreseen_has_no_traceback(monkeypatch, capfd, command, said):
    monkeypatch.setattr("sys.argv", ["benchmarks", *command, "--data-sets", "/nowhere"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    told = capfd.readouterr().err
    assert f"error: {said}" in told
    assert "Traceback" not in told
