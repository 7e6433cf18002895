"""What the cost model knows is shown where one would look for it."""

from __future__ import annotations

from kvsync.config import Home
from kvsync.graft.costs import Costs


def test_show_predicts_a_graft_and_a_computation_once_both_were_measured(kvsync, home, put, make_artifact):
    artifact = make_artifact(3, 40)
    put(artifact, name="doc")
    before = kvsync("show", "doc", "--json").json
    assert before["predicted"] == {"restore_s": None, "prefill_s": None}
    assert "not measured lately" in kvsync("show", "doc").out
    costs = Costs(Home(home))
    costs.prefilled(artifact.manifest.fingerprints, 0, 80, 4.0)
    costs.restored(artifact.manifest.fingerprints, 2 * artifact.manifest.tree.total_bytes, 0.5)
    costs.save()
    after = kvsync("show", "doc", "--json").json
    assert after["predicted"] == {"restore_s": 0.25, "prefill_s": 2.0}
    assert "restoring 250.0 ms, computing 2.0 s as predicted" in kvsync("show", "doc").out


def test_doctor_tells_what_the_cost_model_goes_by(kvsync, home, make_artifact):
    def told():
        checks = {check["name"]: check for check in kvsync("doctor", "--json").json["checks"]}
        return checks["costs"]["state"], checks["costs"]["detail"]

    assert told() == ("ok", "graft_when = auto, nothing measured yet: grafts are made")
    costs = Costs(Home(home))
    costs.prefilled(make_artifact(1).manifest.fingerprints, 0, 100, 1.0)
    costs.save()
    assert told() == ("ok", "graft_when = auto, of 1 model, the last: 100 tokens/s computed, no graft measured")
    (home / "config.toml").write_text('graft_when = "sometimes"\n')
    assert kvsync("ls", "--json").code == "config.value"
