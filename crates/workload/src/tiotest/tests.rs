use super::*;

/// Runs a thread in a world where a transfer takes 3 ms, an `fsync` 50 ms, and any other call
/// nothing.
fn run(thread: &mut Thread) -> (Vec<Call>, Nanos) {
    let mut now = Nanos(0);
    let mut calls = Vec::new();
    loop {
        let call = thread.next(now, &Returned::OK);
        now = now
            + Nanos::from_ms(match call {
                Call::Read { .. } | Call::Write { .. } => 3,
                Call::Fsync(_) => 50,
                _ => 0,
            });
        calls.push(call);
        if call == Call::Exit {
            return (calls, now);
        }
    }
}

fn small() -> Config {
    Config { threads: 2, file_bytes: 64 << 10, block_bytes: 4096, random_ops: 40, seed: 5 }
}

#[test]
fn phases_come_in_order_and_time_includes_fsync_but_latency_does_not() {
    let mut tiotest = Tiotest::new(small());
    while let Some(phase) = tiotest.next_phase() {
        let mut tasks = phase.tasks;
        let ends: Vec<Nanos> = tasks.iter_mut().map(|thread| run(thread).1).collect();
        tiotest.end_phase(Nanos(0), ends.into_iter().max().unwrap(), tasks);
    }
    let rows: Vec<(PhaseKind, u64, u64, u64)> = tiotest
        .results()
        .iter()
        .map(|row| (row.kind, row.time.0 / 1_000_000, row.latency.count, row.bytes))
        .collect();
    assert_eq!(
        rows,
        [
            (PhaseKind::Write, 16 * 3 + 50, 32, 128 << 10),
            (PhaseKind::RandomWrite, 40 * 3 + 50, 80, 320 << 10),
            (PhaseKind::Read, 16 * 3, 32, 128 << 10),
            (PhaseKind::RandomRead, 40 * 3, 80, 320 << 10),
        ]
    );
    assert!(tiotest.results().iter().all(|row| row.latency.max == Nanos::from_ms(3)));
}

#[test]
fn sequential_calls_cover_the_file_and_random_ones_never_its_last_block() {
    let mut tiotest = Tiotest::new(small());
    let mut sequential = tiotest.next_phase().unwrap().tasks;
    let (calls, _) = run(&mut sequential[1]);
    assert_eq!(calls[0], Call::Create(FileId(1)));
    let write =
        |block: u64| Call::Write { file: FileId(1), offset_bytes: block * 4096, len_bytes: 4096 };
    assert_eq!(calls[1..17], (0..16).map(write).collect::<Vec<_>>());
    assert_eq!(calls[17..], [Call::Fsync(FileId(1)), Call::Close(FileId(1)), Call::Exit]);

    let mut random = tiotest.next_phase().unwrap().tasks;
    let offsets = |thread: &mut Thread| -> Vec<u64> {
        let (calls, _) = run(thread);
        let offset = |call: &Call| match call {
            Call::Write { offset_bytes, .. } => Some(offset_bytes / 4096),
            _ => None,
        };
        calls.iter().filter_map(offset).collect()
    };
    let first = offsets(&mut random[0]);
    let second = offsets(&mut random[1]);
    assert!(first.iter().chain(&second).all(|block| *block < 15));
    assert_ne!(first, second, "each thread draws its own offsets");
}

#[test]
fn thread_whose_call_failed_ends() {
    let mut thread = Tiotest::new(small()).next_phase().unwrap().tasks.remove(0);
    thread.next(Nanos(0), &Returned::OK);
    let no_space = Returned { status: Err(28), ..Returned::OK };
    assert_eq!(thread.next(Nanos(0), &no_space), Call::Exit);
}
