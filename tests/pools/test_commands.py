"""Provision, reset and health: what their ends do to slots and requests. The commands themselves: test_worker."""

from typing import Any

from leasehub.events.models import Event
from leases.models import Resource
from pools import runs, services
from pools.models import CommandRun, Pool, Slot
from pools.runs import Outcome, Report
from tests.conftest import Caster, error_of
from tests.pools.conftest import (
    WORKER,
    Declare,
    ask,
    fails,
    look,
    on_slot,
    passes,
    slots,
    status,
    take,
    waiting_runs,
)

COMMANDS = {"provision": "make-clean", "health": "is-healthy"}


def test_a_grant_is_ready_when_its_commands_have_passed_with_its_full_ttl(
    agent: Caster, declare: Declare, clock: Any
) -> None:
    declare(slots=slots(1), ttlMinutes=5, **COMMANDS)
    asked = ask(agent)
    assert (asked["state"], asked["position"], asked["grants"]) == ("provisioning", None, [])
    run = take()
    assert [step["action"] for step in run.steps] == ["provision", "health"]
    assert run.environment["POOL_SLOT_ID"] == "1"
    clock.move(seconds=200)
    passes(run)
    (grant,) = look(agent, asked)["grants"]
    assert 290_000 < grant["expires_in_ms"] <= 300_000
    assert Event.objects.filter(type="pool.ready").count() == 1


def test_a_failed_provision_tries_the_next_free_slot(agent: Caster, declare: Declare) -> None:
    declare(**COMMANDS)
    asked = ask(agent)
    fails()
    assert look(agent, asked)["state"] == "provisioning"
    passes()
    granted = look(agent, asked)
    assert (granted["state"], granted["grants"][0]["slot_id"]) == ("ready", 2)
    failure = Event.objects.get(type="pool.grant_failed")
    assert failure.data["final"] is False
    assert status(agent)["slots"][0]["failures"] == 1


def test_a_failed_request_keeps_its_place(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=slots(1), **COMMANDS)
    first, second = ask(agent), ask(teammate)
    fails()
    assert (look(agent, first)["state"], look(teammate, second)["position"]) == ("provisioning", 1)


def test_three_failures_in_a_row_break_the_slot_and_end_the_request(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1), **COMMANDS)
    asked = ask(agent)
    for _ in range(3):
        fails(error="reset failed (provision command exit 7)")
    ended = look(agent, asked)
    assert (ended["state"], ended["slot_id"]) == ("reset_failed", 1)
    assert "reset failed (provision command exit 7)" in ended["error"]
    assert status(agent)["slots"][0]["condition"] == "broken"
    assert Event.objects.filter(type="pool.slot_broken").count() == 1
    assert ask(agent)["state"] == "queued"
    assert waiting_runs() == 0


def test_a_failed_health_check_is_called_so(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1), **COMMANDS)
    asked = ask(agent)
    for _ in range(3):
        fails(action="health", error="health check failed (health command exit 1)")
    assert look(agent, asked)["state"] == "health_failed"


def test_who_does_not_wait_fails_when_there_is_no_other_slot(agent: Caster, declare: Declare) -> None:
    declare(**COMMANDS)
    asked = ask(agent, no_wait=True)
    fails()
    assert look(agent, asked)["state"] == "provisioning"
    fails()
    assert look(agent, asked)["state"] == "provisioning", "both failed once, and are free again"
    fails()
    assert look(agent, asked)["state"] == "reset_failed"


def test_who_does_not_wait_fails_while_the_other_slot_is_held(agent: Caster, declare: Declare) -> None:
    declare(**COMMANDS)
    ask(agent)
    passes()
    asked = ask(agent, no_wait=True)
    drained = Slot.objects.get(slot_id="2")
    Slot.objects.filter(pk=drained.pk).update(is_draining=True)
    fails()
    assert look(agent, asked)["state"] == "reset_failed"


def test_a_lease_that_lapses_meanwhile_yields_no_grant(agent: Caster, declare: Declare, clock: Any) -> None:
    declare(slots=slots(1), ttlMinutes=1, **COMMANDS)
    asked = ask(agent)
    run = take()
    clock.move(seconds=61)
    passes(run)
    ended = look(agent, asked)
    assert (ended["state"], ended["grants"]) == ("lease_lost_during_reset", [])
    assert Slot.objects.get().lease_id is None


def test_a_slot_whose_command_runs_is_not_granted(
    agent: Caster, teammate: Caster, operator: Caster, declare: Declare
) -> None:
    declare(slots=slots(1), **COMMANDS)
    asked = ask(agent)
    run = take()
    lease = Resource.objects.get(lease_id__isnull=False)
    body = {"reason": "test", "fencing_token": lease.last_token}
    assert lease.lease_id is not None
    assert operator.post(f"leases/lease_{lease.lease_id.hex}/force-release", body).status_code == 200
    assert look(agent, asked)["state"] == "lease_lost_during_reset"
    waiter = ask(teammate)
    assert waiter["state"] == "queued"
    assert runs.to_be_stopped(worker_name=WORKER) == [run.pk]
    runs.finish(run=run.pk, worker_name=WORKER, report=Report(Outcome.INTERRUPTED, "provision", "the lease has ended"))
    assert look(teammate, waiter)["state"] == "provisioning"


def test_an_outcome_for_a_lease_that_has_ended_changes_nothing(
    agent: Caster, teammate: Caster, declare: Declare, clock: Any
) -> None:
    declare(slots=slots(1), ttlMinutes=1, **COMMANDS)
    first = ask(agent)
    run = take()
    clock.move(seconds=61)
    second = ask(teammate)
    assert look(agent, first)["state"] == "lease_lost_during_reset"
    assert look(teammate, second)["state"] == "queued", "the first one's command still runs"
    passes(run)
    assert look(teammate, second)["state"] == "provisioning", "and is not taken for the second one's"


def test_a_run_that_nobody_reports_keeps_its_slot_until_after_its_deadline(
    agent: Caster, teammate: Caster, declare: Declare, clock: Any
) -> None:
    declare(slots=slots(1), ttlMinutes=1, commandTimeoutMs=100_000, provision="make-clean")
    ask(agent)
    run = take()
    run.refresh_from_db()
    assert run.deadline is not None
    clock.move(seconds=61)
    waiter = ask(teammate)
    while clock.now() < run.deadline:
        runs.give_up_overdue()
        assert look(teammate, waiter)["state"] == "queued"
        clock.move(seconds=20)
    clock.move(seconds=10)
    assert runs.give_up_overdue() == 1
    assert look(teammate, waiter)["state"] == "provisioning"
    run.refresh_from_db()
    assert run.outcome == "lost"
    assert not runs.finish(run=run.pk, worker_name=WORKER, report=Report(Outcome.PASSED))


def test_leases_live_while_their_commands_run_or_wait(agent: Caster, declare: Declare, clock: Any) -> None:
    declare(slots=slots(2), ttlMinutes=1, **COMMANDS)
    asked = [ask(agent), ask(agent)]
    take()
    for _ in range(5):
        clock.move(seconds=50)
        assert runs.keep_leases_alive(queues=["default"]) == 2
    assert runs.keep_leases_alive(queues=["default"]) == 0, "just done"
    assert {look(agent, each)["state"] for each in asked} == {"provisioning"}


def test_an_interrupted_run_is_nobodys_failure(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1), **COMMANDS)
    asked = ask(agent)
    for _ in range(5):
        runs.finish(run=take().pk, worker_name=WORKER, report=Report(Outcome.INTERRUPTED, "provision", "worker stops"))
    assert look(agent, asked)["state"] == "provisioning"
    assert status(agent)["slots"][0]["failures"] == 0


def test_a_count_is_ready_when_every_slot_is_clean(agent: Caster, declare: Declare, clock: Any) -> None:
    declare(slots=slots(3), ttlMinutes=1, **COMMANDS)
    asked = ask(agent, count=2)
    passes()
    assert look(agent, asked)["state"] == "provisioning"
    fails()
    clock.move(seconds=50)
    runs.keep_leases_alive(queues=["default"])
    clock.move(seconds=50)
    passes()
    granted = look(agent, asked)
    assert granted["state"] == "ready"
    assert [grant["slot_id"] for grant in granted["grants"]] == [1, 3]


def test_one_lost_lease_of_a_count_ends_it_all(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(2), **COMMANDS)
    asked = ask(agent, count=2)
    passes()
    run = take()
    agent.delete(f"leases/lease_{run.lease_id.hex}")  # type: ignore[union-attr]
    assert look(agent, asked)["state"] == "lease_lost_during_reset"
    assert Slot.objects.exclude(lease_id=None).count() == 0


def test_cancelling_while_commands_run_gives_everything_back(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(2), **COMMANDS)
    asked = ask(agent, count=2)
    running = take()
    agent.delete(f"pools/e2e/requests/{asked['request_id']}")
    assert Slot.objects.exclude(lease_id=None).count() == 0
    assert waiting_runs() == 0, "what no worker had begun is withdrawn"
    assert runs.to_be_stopped(worker_name=WORKER) == [running.pk]
    assert status(agent)["slots_free"] == 1


def test_a_holder_resets_its_slot_and_keeps_it(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1), reset="again", provision="make-clean")
    asked = ask(agent)
    passes()
    (grant,) = look(agent, asked)["grants"]
    response = on_slot(agent, grant, "reset")
    begun = response.json()["data"]
    assert (response.status_code, begun["state"]) == (202, "waiting")
    assert error_of(on_slot(agent, grant, "reset"))["code"] == "CONFLICT"
    run = take()
    assert [step["command"] for step in run.steps] == ["again"]
    passes(run)
    ended = agent.get(f"pools/e2e/runs/{begun['run_id']}").json()["data"]
    assert (ended["state"], ended["outcome"]) == ("ended", "passed")
    assert "results" not in ended
    assert on_slot(agent, grant, "release").status_code == 200


def test_a_reset_that_outlives_the_lease_is_no_success(agent: Caster, declare: Declare, clock: Any) -> None:
    declare(slots=slots(1), ttlMinutes=1, reset="again", provision="")
    (grant,) = ask(agent)["grants"]
    begun = on_slot(agent, grant, "reset").json()["data"]
    run = take()
    clock.move(seconds=61)
    passes(run)
    ended = agent.get(f"pools/e2e/runs/{begun['run_id']}").json()["data"]
    assert (ended["outcome"], ended["error"]) == ("failed", "lease lost during reset")


def test_a_stale_holder_resets_nothing(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=slots(1), reset="again", provision="")
    (grant,) = ask(agent)["grants"]
    on_slot(agent, grant, "release")
    assert error_of(on_slot(agent, grant, "reset"))["code"] == "LEASE_LOST"
    ask(teammate)
    assert error_of(on_slot(agent, grant, "reset"))["code"] == "LEASE_LOST"
    assert waiting_runs() == 0


def test_an_operator_reprovisions_a_free_slot(agent: Caster, operator: Caster, declare: Declare) -> None:
    declare(slots=slots(1), **COMMANDS)
    ask(agent)
    for _ in range(3):
        fails()
    begun = operator.post("pools/e2e/slots/1/reprovision").json()["data"]
    waiter = ask(agent)
    assert waiter["state"] == "queued"
    passes()
    assert look(agent, waiter)["state"] == "provisioning"
    ended = operator.get(f"pools/e2e/runs/{begun['run_id']}").json()["data"]
    assert (ended["outcome"], ended["condition"], ended["results"]) == ("passed", "enabled", [])
    refused = error_of(operator.post("pools/e2e/slots/1/reprovision"))
    assert (refused["status"], refused["code"]) == (409, "CONFLICT")
    assert Pool.objects.get().durations_ms == []


def test_health_of_a_broken_slot_is_asked_for_until_it_passes(agent: Caster, declare: Declare, clock: Any) -> None:
    declare(slots=slots(1), **COMMANDS)
    ask(agent)
    for _ in range(3):
        fails()
    waiter = ask(agent)
    for passes_now in (False, True):
        clock.move(seconds=61)
        look(agent, waiter)
        services.sweep_pools()
        run = take()
        assert run.purpose == "recover"
        (passes if passes_now else fails)(run)
    assert look(agent, waiter)["state"] == "provisioning"
    assert Event.objects.filter(type="pool.slot_repaired").count() == 1


def test_only_operators_operate(agent: Caster, declare: Declare) -> None:
    declare()
    for verb in ("drain", "undrain", "repair", "reprovision", "health"):
        refused = error_of(agent.post(f"pools/e2e/slots/1/{verb}"))
        assert (refused["status"], refused["missing_ring"]) == (403, 3)
    assert error_of(agent.put("pools/e2e", {"slots": slots(1)}))["missing_ring"] == 3


def test_no_commands_here(agent: Caster, operator: Caster, declare: Declare, settings: Any) -> None:
    declare(slots=slots(1), **COMMANDS)
    settings.LEASEHUB_COMMANDS = False
    refused = error_of(operator.put("pools/other", {"slots": slots(1), "provision": "x"}))
    assert (refused["status"], refused["code"]) == (403, "FORBIDDEN")
    assert "LEASEHUB_COMMANDS" in refused["message"]
    assert error_of(agent.post("pools/e2e/requests", {"mode": "async"}))["code"] == "UNSATISFIABLE"
    assert operator.put("pools/plain", {"slots": slots(1)}).status_code == 201


def test_the_embedded_server_refuses_a_queue_that_nobody_serves(operator: Caster, settings: Any) -> None:
    settings.EMBEDDED = True
    file = {"slots": slots(1), "provision": "x", "worker": "host-a"}
    refused = error_of(operator.put("pools/e2e", file))
    assert (refused["status"], refused["code"]) == (422, "UNSATISFIABLE")
    assert "host-a" in refused["message"]
    runs.announce(worker_name=WORKER, queues=["host-a"])
    runs.announce(worker_name=WORKER, queues=["host-a"])
    assert operator.put("pools/e2e", file).status_code == 201


def test_nudges_for_async_grants_and_for_every_final_failure(agent: Caster, declare: Declare) -> None:
    declare(slots=slots(1), nudgeCommand="tell", provision="make-clean")
    asked = ask(agent, mode="async", session="muse-04")
    passes()
    nudge = take()
    assert (nudge.purpose, nudge.step_timeout_ms) == ("nudge", 15_000)
    from pools.nudges import payload

    assert nudge.request is not None
    told = payload(nudge.request)
    assert (told["event"], told["session"], told["grant"]["slot_id"]) == ("lease-granted", "muse-04", 1)
    assert list(told)[:4] == ["event", "session", "request_id", "grant"]
    grant = told["grant"]
    assert list(grant)[:9] == ["ok", "state", "request_id", "mode", "slot_id", "kind", "owner", "token", "ttlMinutes"]
    assert (grant["owner"], grant["token"]) == (grant["holder"], grant["fencing_token"])
    passes(nudge)
    agent.delete(f"pools/e2e/requests/{asked['request_id']}")
    assert waiting_runs() == 0
    asked = ask(agent)
    for _ in range(3):
        fails()
    nudge = take()
    assert nudge.request is not None
    assert payload(nudge.request)["state"] == "reset_failed"


def test_a_nudge_delays_no_grant(agent: Caster, teammate: Caster, declare: Declare) -> None:
    declare(slots=slots(2), nudgeCommand="tell", provision="make-clean")
    ask(agent, mode="async")
    passes()
    ask(teammate)
    assert take().purpose == "grant"
    assert take().purpose == "nudge"


def test_runs_and_requests_are_forgotten_after_two_weeks(agent: Caster, declare: Declare, clock: Any) -> None:
    declare(slots=slots(1), provision="make-clean")
    ask(agent)
    for _ in range(3):
        fails()
    assert runs.forget() == 0
    clock.move(days=15)
    assert runs.forget() == 4
    assert CommandRun.objects.count() == 0


def test_a_late_failure_of_a_lost_lease_is_not_the_slots(agent: Caster, operator: Caster, declare: Declare) -> None:
    declare(slots=slots(1), reset="again", provision="")
    (grant,) = ask(agent)["grants"]
    on_slot(agent, grant, "reset")
    run = take()
    body = {"reason": "test", "fencing_token": grant["fencing_token"]}
    assert operator.post(f"leases/{grant['lease_id']}/force-release", body).status_code == 200
    fails(run, action="reset")
    assert status(agent)["slots"][0]["failures"] == 0
