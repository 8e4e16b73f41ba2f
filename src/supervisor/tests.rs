//! Every state against every input, then sequences of events.

use super::{policy::DEGRADED_WINDOW, *};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn generation(number: u64) -> Generation {
    Generation(number)
}

fn exited(number: u64, actor: ActorIndex, exit: Exit) -> SupervisorInput {
    SupervisorInput::Exited { generation: generation(number), actor, exit }
}

fn failed(number: u64, actor: ActorIndex) -> SupervisorInput {
    exited(number, actor, Exit::Failed("why".into()))
}

fn start(number: u64) -> Decision {
    Decision::Start { generation: generation(number), abandoned: vec![] }
}

fn ping(number: u64, actors: &[ActorIndex]) -> Decision {
    Decision::Ping { generation: generation(number), actors: actors.to_vec() }
}

/// Returns a unit of three actors, at time 0, in the named state, in generation 1 (0 if it never ran).
fn unit(state: &str) -> Supervisor {
    let mut unit = Supervisor::new(Supervision::default(), 3);
    let inputs = match state {
        "stopped" => vec![],
        "starting" => vec![SupervisorInput::Start],
        "running" => vec![SupervisorInput::Start, SupervisorInput::Started(generation(1))],
        // The failed actor and another one have ended, the third is still stopping.
        "backing off" => vec![SupervisorInput::Start, failed(1, 0), failed(1, 1)],
        "stopping" => vec![SupervisorInput::Start, SupervisorInput::Stop, failed(1, 0)],
        _ => panic!("no such state: {state}"),
    };
    for input in inputs {
        unit.step(input, Duration::ZERO, 0.0);
    }
    unit
}

fn name(unit: &Supervisor) -> &'static str {
    match unit.phase {
        Phase::Starting { .. } | Phase::Running if unit.policy.is_degraded() => "degraded",
        Phase::Starting { .. } => "starting",
        Phase::Running => "running",
        Phase::BackingOff { .. } => "backing off",
        Phase::Stopping { .. } => "stopping",
        Phase::Stopped => "stopped",
    }
}

/// Returns the failure that a unit waits for: attempt, end of the delay, actor and its end.
#[track_caller]
fn failure(unit: &Supervisor) -> (u32, Duration, Option<ActorIndex>, &Exit) {
    let Phase::BackingOff { attempt, until, actor, cause, .. } = &unit.phase else { panic!("expected a wait") };
    (*attempt, *until, *actor, cause)
}

#[track_caller]
fn check(state: &str, input: &SupervisorInput, now: f64, expected: &Decision, next: &str) {
    let mut unit = unit(state);
    assert_eq!(name(&unit), state, "the fixture");
    let decision = unit.step(input.clone(), at(now), 0.0).decision;
    assert_eq!((&decision, name(&unit)), (expected, next), "{state} × {input:?} at {now} s");
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is one table")]
fn every_state_handles_every_input() {
    use Decision::{Done, Nothing};
    let (stop, done) = (Decision::Stop(generation(1)), Done { abandoned: vec![] });
    let answered = |number, actor| SupervisorInput::Answered { generation: generation(number), actor };
    for (input, now, by_state) in [
        (
            SupervisorInput::Start,
            1.0,
            [
                (start(1), "starting"),
                (Nothing, "starting"),
                (Nothing, "running"),
                (Nothing, "backing off"),
                (Nothing, "stopping"),
            ],
        ),
        (
            SupervisorInput::Started(generation(1)),
            1.0,
            [
                (Nothing, "stopped"),
                (Nothing, "running"),
                (Nothing, "running"),
                (Nothing, "backing off"),
                (Nothing, "stopping"),
            ],
        ),
        (
            failed(1, 2),
            0.5,
            [
                (Nothing, "stopped"),
                (stop.clone(), "backing off"),
                (stop.clone(), "backing off"),
                (Nothing, "backing off"),
                (Nothing, "stopping"),
            ],
        ),
        // Last actor of a unit that waits for it, after the delay.
        (
            failed(1, 2),
            5.0,
            [
                (Nothing, "stopped"),
                (stop.clone(), "backing off"),
                (stop.clone(), "backing off"),
                (start(2), "starting"),
                (Nothing, "stopping"),
            ],
        ),
        (
            exited(1, 1, Exit::Stopped),
            5.0,
            [
                (Nothing, "stopped"),
                (stop.clone(), "backing off"),
                (stop.clone(), "backing off"),
                (Nothing, "backing off"),
                (Nothing, "stopping"),
            ],
        ),
        (
            answered(1, 0),
            1.0,
            [
                (Nothing, "stopped"),
                (Nothing, "starting"),
                (Nothing, "running"),
                (Nothing, "backing off"),
                (Nothing, "stopping"),
            ],
        ),
        (
            SupervisorInput::Timer,
            1.0,
            [
                (Nothing, "stopped"),
                (Nothing, "starting"),
                (Nothing, "running"),
                (Nothing, "backing off"),
                (Nothing, "stopping"),
            ],
        ),
        // All deadlines have passed.
        (
            SupervisorInput::Timer,
            60.0,
            [
                (Nothing, "stopped"),
                (stop.clone(), "backing off"),
                (ping(1, &[0, 1, 2]), "running"),
                (Decision::Start { generation: generation(2), abandoned: vec![2] }, "starting"),
                (Done { abandoned: vec![1, 2] }, "stopped"),
            ],
        ),
        (
            SupervisorInput::Stop,
            1.0,
            [
                (done, "stopped"),
                (stop.clone(), "stopping"),
                (stop.clone(), "stopping"),
                (stop, "stopping"),
                (Nothing, "stopping"),
            ],
        ),
    ] {
        for (state, (decision, next)) in
            ["stopped", "starting", "running", "backing off", "stopping"].iter().zip(by_state)
        {
            check(state, &input, now, &decision, next);
        }
    }
}

#[test]
fn input_of_other_generation_or_actor_changes_nothing() {
    for state in ["stopped", "starting", "running", "backing off", "stopping"] {
        for input in [
            failed(0, 0),
            failed(2, 0),
            failed(1, 3),
            SupervisorInput::Started(generation(2)),
            SupervisorInput::Answered { generation: generation(2), actor: 0 },
            SupervisorInput::Answered { generation: generation(1), actor: 9 },
        ] {
            let mut unit = unit(state);
            let before = format!("{unit:?}");
            assert_eq!(unit.step(input.clone(), SECOND, 0.0).decision, Decision::Nothing);
            assert_eq!(format!("{unit:?}"), before, "{state} × {input:?}");
        }
    }
}

#[test]
fn one_exit_restarts_all_after_delay() {
    for exit in [Exit::Stopped, Exit::Failed("x".into()), Exit::Panicked("y".into()), Exit::Hung, Exit::ArbiterGone] {
        let mut unit = unit("running");
        let verdict = unit.step(exited(1, 1, exit.clone()), SECOND, 0.5);
        assert_eq!(verdict.decision, Decision::Stop(generation(1)));
        let until = at(2.2);
        assert_eq!(failure(&unit), (1, until, Some(1), &exit));
        unit.step(exited(1, 0, Exit::Stopped), SECOND, 0.0);
        assert_eq!(unit.step(SupervisorInput::Timer, until, 0.0).decision, Decision::Nothing, "actor 2 still lives");
        assert_eq!(unit.step(exited(1, 2, Exit::Stopped), until, 0.0).decision, start(2));
        assert_eq!(unit.restarts, 1);
    }
    let mut unit = unit("running");
    for actor in 0..3 {
        unit.step(failed(1, actor), SECOND, 0.0);
    }
    let verdict = unit.step(SupervisorInput::Timer, at(1.7), 0.0);
    assert_eq!(
        verdict,
        SupervisorVerdict { decision: Decision::Nothing, wake_at: Some(at(1.8)) },
        "the delay still runs"
    );
    assert_eq!(unit.step(SupervisorInput::Timer, at(1.8), 0.0).decision, start(2));
}

/// Lets the unit fail this number of times, each time when it starts to run; returns the clock.
fn fail_often(unit: &mut Supervisor, times: u32, mut now: Duration) -> Duration {
    for _ in 0..times {
        let running = unit.generation();
        unit.step(SupervisorInput::Started(running), now, 0.0);
        for actor in 0..3 {
            unit.step(failed(running.0, actor), now, 0.0);
        }
        (_, now, ..) = failure(unit);
        assert_eq!(unit.step(SupervisorInput::Timer, now, 0.0).decision, start(running.0 + 1));
    }
    now
}

#[test]
fn delays_grow_and_restarts_never_end() {
    let mut unit = unit("starting");
    let now = fail_often(&mut unit, 3, Duration::ZERO);
    assert_eq!(now, at(0.8 + 1.6 + 3.2));
    fail_often(&mut unit, 500, now);
    assert_eq!(unit.restarts, 503);
}

#[test]
fn five_quick_failures_degrade_and_health_heals() {
    let mut unit = unit("starting");
    let now = fail_often(&mut unit, 4, Duration::ZERO);
    assert!(!unit.policy.is_degraded());
    let now = fail_often(&mut unit, 1, now);
    assert_eq!((name(&unit), unit.policy.failures()), ("degraded", 5), "while it starts");
    let verdict = unit.step(SupervisorInput::Started(generation(6)), now, 0.0);
    assert_eq!((name(&unit), unit.policy.failures()), ("degraded", 5));
    assert!(verdict.wake_at.is_some());
    unit.step(SupervisorInput::Timer, now + at(119.0), 0.0);
    for actor in 0..3 {
        unit.step(SupervisorInput::Answered { generation: generation(6), actor }, now + at(119.0), 0.0);
    }
    assert!(unit.policy.is_degraded());
    unit.step(SupervisorInput::Timer, now + at(120.0), 0.0);
    assert_eq!(name(&unit), "running");
    unit.step(failed(6, 0), now + at(121.0), 0.0);
    assert_eq!(failure(&unit).0, 1, "delays begin anew");
}

#[test]
fn distant_failures_do_not_degrade() {
    let config = Supervision::default();
    let mut policy = RestartPolicy::new(&config);
    for round in 0..20 {
        policy.failed(at(f64::from(round) * 76.0), 0.0);
        assert!(!policy.is_degraded(), "{round}: four in five minutes");
    }
    let mut never = RestartPolicy::new(&Supervision { degraded_after: 0, ..config });
    for _ in 0..5_000 {
        never.failed(SECOND, 0.0);
    }
    assert!(!never.is_degraded());
    assert_eq!(never.failures(), 1_000, "memory is bounded");
}

#[test]
fn unanswered_heartbeat_is_a_hang() {
    let mut unit = unit("running");
    assert_eq!(unit.step(SupervisorInput::Timer, at(10.0), 0.0).decision, ping(1, &[0, 1, 2]));
    for actor in [0, 2] {
        unit.step(SupervisorInput::Answered { generation: generation(1), actor }, at(11.0), 0.0);
    }
    assert_eq!(unit.step(SupervisorInput::Timer, at(20.0), 0.0).decision, ping(1, &[0, 2]));
    unit.step(SupervisorInput::Answered { generation: generation(1), actor: 2 }, at(21.0), 0.0);
    let verdict = unit.step(SupervisorInput::Timer, at(39.9), 0.0);
    assert_eq!(verdict.wake_at, Some(at(40.0)));
    let verdict = unit.step(SupervisorInput::Timer, at(40.0), 0.0);
    assert_eq!(verdict.decision, Decision::Stop(generation(1)));
    assert_eq!(failure(&unit).2, Some(1));
    assert_eq!(*failure(&unit).3, Exit::Hung);
    for actor in [0, 2] {
        unit.step(exited(1, actor, Exit::Stopped), at(40.1), 0.0);
    }
    let decision = unit.step(SupervisorInput::Timer, at(40.8), 0.0).decision;
    assert_eq!(decision, Decision::Start { generation: generation(2), abandoned: vec![1] }, "not waited for");
    assert_eq!(unit.step(failed(1, 1), at(41.0), 0.0).decision, Decision::Nothing, "it woke up too late");
}

#[test]
fn hung_actor_that_wakes_up_is_awaited() {
    let mut unit = unit("running");
    unit.step(SupervisorInput::Timer, at(10.0), 0.0);
    unit.step(SupervisorInput::Timer, at(40.0), 0.0);
    unit.step(SupervisorInput::Answered { generation: generation(1), actor: 1 }, at(40.1), 0.0);
    assert_eq!(unit.step(SupervisorInput::Timer, at(40.8), 0.0).decision, Decision::Nothing);
    let decision = unit.step(exited(1, 1, Exit::Stopped), at(41.0), 0.0).decision;
    assert_eq!(decision, Decision::Start { generation: generation(2), abandoned: vec![0, 2] });
}

#[test]
fn hung_actors_of_one_thread_are_abandoned_together() {
    let mut unit = unit("running");
    unit.step(SupervisorInput::Timer, at(10.0), 0.0);
    unit.step(SupervisorInput::Timer, at(40.0), 0.0);
    let decision = unit.step(SupervisorInput::Timer, at(40.8), 0.0).decision;
    assert_eq!(decision, Decision::Start { generation: generation(2), abandoned: vec![0, 1, 2] });
}

#[test]
fn stop_waits_for_every_actor_and_allows_restart() {
    let mut unit = unit("running");
    assert_eq!(unit.step(SupervisorInput::Stop, SECOND, 0.0).decision, Decision::Stop(generation(1)));
    for actor in 0..2 {
        assert_eq!(unit.step(exited(1, actor, Exit::Stopped), SECOND, 0.0).decision, Decision::Nothing);
    }
    let verdict = unit.step(failed(1, 2), SECOND, 0.0);
    assert_eq!(verdict, SupervisorVerdict { decision: Decision::Done { abandoned: vec![] }, wake_at: None });
    assert_eq!(unit.step(SupervisorInput::Start, SECOND, 0.0).decision, start(2));
    assert_eq!(unit.restarts, 0);
}

#[test]
fn stop_during_backoff_completes_at_once() {
    let mut unit = unit("backing off");
    unit.step(failed(1, 2), Duration::ZERO, 0.0);
    assert_eq!(unit.step(SupervisorInput::Stop, at(0.1), 0.0).decision, Decision::Done { abandoned: vec![] });
}

#[test]
fn policy_settles_only_after_failures() {
    let mut policy = RestartPolicy::new(&Supervision::default());
    policy.healthy(at(0.0));
    assert_eq!(policy.settles_at(), None, "nothing has failed");
    policy.failed(at(10.0), 0.0);
    policy.healthy(at(12.0));
    assert_eq!(policy.settles_at(), Some(at(132.0)));
    policy.settle(at(132.0));
    assert_eq!(policy.settles_at(), None);
}

#[test]
fn failure_counts_until_window_ends() {
    let mut policy = RestartPolicy::new(&Supervision::default());
    policy.failed(Duration::ZERO, 0.0);
    policy.failed(DEGRADED_WINDOW, 0.0);
    assert_eq!(policy.failures(), 2, "the first is exactly as old as the window");
    policy.failed(DEGRADED_WINDOW + Duration::from_nanos(1), 0.0);
    assert_eq!(policy.failures(), 2);
}
