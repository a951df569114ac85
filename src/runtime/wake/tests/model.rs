//! A model of wake-ups in thousands of thread schedules.

use std::sync::{Arc, Mutex};

use shuttle::thread::{spawn, yield_now};

use super::*;

/// The orders are the same in each run, unless `SHUTTLE_RANDOM_SEED` is set.
const SEED: u64 = 1;

/// A pipe in which a thread may be paused before and after each step.
#[derive(Default)]
struct ModelPipe(shuttle::sync::Mutex<usize>, shuttle::sync::Condvar);

impl ModelPipe {
    /// Sleeps until a byte has arrived. Shuttle finds a sleep that nothing ends.
    fn sleep(&self) {
        let mut bytes = self.0.lock().unwrap();
        while *bytes == 0 {
            bytes = self.1.wait(bytes).unwrap();
        }
    }
}

impl Signal for ModelPipe {
    fn write(&self) {
        yield_now();
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
        yield_now();
    }

    fn read(&self) {
        yield_now();
        *self.0.lock().unwrap() = 0;
        yield_now();
    }
}

const SENDERS: usize = 3;
const EACH: usize = 2;

/// Threads fill an inbox and wake another thread, which ends once it has received all.
fn run(drain: fn(&Wake<ModelPipe>)) {
    let wake = Arc::new(Wake::of(ModelPipe::default()));
    let inbox = Arc::new(Mutex::new(0));
    let senders = [(); SENDERS].map(|()| {
        let (wake, inbox) = (Arc::clone(&wake), Arc::clone(&inbox));
        spawn(move || {
            for _ in 0..EACH {
                *inbox.lock().unwrap() += 1;
                yield_now();
                wake.wake();
            }
        })
    });
    let mut received = 0;
    while received < SENDERS * EACH {
        wake.pipe.sleep();
        drain(&wake);
        yield_now();
        received += std::mem::take(&mut *inbox.lock().unwrap());
        yield_now();
    }
    for sender in senders {
        sender.join().unwrap();
    }
}

#[test]
fn no_wake_up_is_lost() {
    shuttle::check_random_with_seed(|| run(Wake::drain), SEED, 5_000);
}

/// Shows that the model finds a lost wake-up.
#[test]
#[should_panic(expected = "deadlock")]
fn a_flag_that_is_cleared_before_the_pipe_loses_wake_ups() {
    let wrong = |wake: &Wake<ModelPipe>| {
        wake.is_armed.store(false, Ordering::SeqCst);
        wake.pipe.read();
    };
    shuttle::check_random_with_seed(move || run(wrong), SEED, 5_000);
}
