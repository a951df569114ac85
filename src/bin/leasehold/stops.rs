//! Stops of this process by TSTP, such as Ctrl-Z. As in the kernel, a CONT takes back the stops
//! before it.
//!
//! ```text
//!          TSTP                          `suspend`
//! running ─────▶ a stop is pending ─────────────────▶ stopped
//!    ▲                 │ CONT, `discard`                 │ CONT
//!    └─────────────────┴─────────────────────────────────┘
//! ```

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    begin_unblocked, catch, discard, end_unblocked, is_pending, suspend, suspend_unless,
};
#[cfg(not(target_os = "linux"))]
pub(crate) use others::{
    begin_unblocked, catch, discard, end_unblocked, is_pending, suspend, suspend_unless,
};

/// All threads block TSTP, so it stays pending in the kernel, which discards it at a CONT. To stop,
/// the main thread unblocks it for a moment: if it is still pending, its handler stops this
/// process.
///
/// The handler is needed for a thread that starts a child. That thread does not block TSTP, and
/// without a handler it would stop this process while the command runs. If that thread has received
/// a TSTP, this process sends itself another one afterwards, unless a CONT has come as well.
#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, LazyLock, OnceLock};
    use std::thread;
    use std::time::{Duration, Instant};

    use leasehold::crossbeam_channel::Sender;
    use nix::sys::signal::{SigSet, Signal, kill, raise};
    use nix::sys::signalfd::{SfdFlags, SignalFd};
    use nix::unistd::Pid;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use signal_hook::consts::{SIGCONT, SIGTSTP};
    use signal_hook::flag;

    /// How often a pending stop is announced until it is answered.
    const ANNOUNCE_EVERY: Duration = Duration::from_millis(20);

    /// After this time, a stop is discarded: it was forwarded to a command that does not stop.
    /// While it is pending, the kernel reports no other stop.
    const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

    /// How long a stop must have been pending before this process stops. The handler takes about a
    /// microsecond from its call to the stop, and a CONT in that time would come too early. So that
    /// time must not follow TSTP closely, as the CONT of a program does.
    const SETTLED_AFTER: Duration = Duration::from_millis(20);

    /// Whether the handler of TSTP stops this process.
    static STOPS: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

    /// Whether a thread that does not block TSTP has received it.
    static IS_RECEIVED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

    /// Whether CONT was received since [`begin_unblocked`].
    static IS_CONTINUED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

    /// Readable while a TSTP is pending. To read it discards that TSTP.
    static PENDING: OnceLock<SignalFd> = OnceLock::new();

    /// Sends SIGTSTP to `signals` for a stop that is pending, once or several times.
    ///
    /// Call it before another thread is started: it would not block the signal.
    pub(crate) fn catch(signals: Sender<i32>) -> io::Result<()> {
        let mask = SigSet::from(Signal::SIGTSTP);
        mask.thread_block()?;
        flag::register(SIGTSTP, Arc::clone(&IS_RECEIVED))?;
        flag::register_conditional_default(SIGTSTP, Arc::clone(&STOPS))?;
        flag::register(SIGCONT, Arc::clone(&IS_CONTINUED))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let pending = SignalFd::with_flags(&mask, flags)?;
        let pending = PENDING.get_or_init(|| pending);
        thread::Builder::new()
            .name("leasehold-stops".into())
            .spawn(move || announce(pending, &signals))?;
        Ok(())
    }

    /// Returns whether TSTP was received, and neither answered nor taken back by a CONT.
    pub(crate) fn is_pending() -> bool {
        PENDING.get().is_some_and(is_readable)
    }

    /// Stops this process until it receives CONT, if a stop is pending.
    pub(crate) fn suspend() {
        if !is_pending() {
            return;
        }
        thread::sleep(SETTLED_AFTER);
        let mask = SigSet::from(Signal::SIGTSTP);
        STOPS.store(true, Ordering::SeqCst);
        // These calls fail only for invalid arguments. If TSTP is still pending, the handler stops
        // this process before the first of them returns.
        let _ = mask.thread_unblock();
        let _ = mask.thread_block();
        STOPS.store(false, Ordering::SeqCst);
    }

    /// Stops this process until it receives CONT, unless it `is_over`.
    pub(crate) fn suspend_unless(is_over: impl FnOnce() -> bool) {
        let is_ignored = PENDING.get().is_none();
        // From here on, a CONT takes back the stop.
        let _ = raise(Signal::SIGTSTP);
        if is_over() {
            discard();
        } else if is_ignored {
            let _ = raise(Signal::SIGSTOP);
        } else {
            suspend();
        }
    }

    /// Discards the stops that are pending.
    pub(crate) fn discard() {
        if let Some(pending) = PENDING.get() {
            while let Ok(Some(_)) = pending.read_signal() {}
        }
    }

    /// Call it before a thread ceases to block TSTP.
    pub(crate) fn begin_unblocked() {
        IS_RECEIVED.store(false, Ordering::SeqCst);
        IS_CONTINUED.store(false, Ordering::SeqCst);
    }

    /// Call it when all threads block TSTP again.
    pub(crate) fn end_unblocked() {
        if IS_RECEIVED.swap(false, Ordering::SeqCst) {
            thread::sleep(SETTLED_AFTER);
            if !IS_CONTINUED.load(Ordering::SeqCst) {
                let _ = kill(Pid::this(), Signal::SIGTSTP);
            }
        }
    }

    fn announce(pending: &SignalFd, signals: &Sender<i32>) {
        loop {
            let _ = poll(&mut [PollFd::new(pending, PollFlags::IN)], None);
            let began = Instant::now();
            while is_readable(pending) {
                if began.elapsed() > ANSWERED_WITHIN {
                    let _ = pending.read_signal();
                // Fails when this process no longer handles signals.
                } else if signals.send(SIGTSTP).is_err() {
                    return;
                }
                thread::sleep(ANNOUNCE_EVERY);
            }
        }
    }

    fn is_readable(pending: &SignalFd) -> bool {
        let mut files = [PollFd::new(pending, PollFlags::IN)];
        matches!(poll(&mut files, Some(&Timespec::default())), Ok(1..))
    }
}

/// Handlers note whether TSTP or CONT was received last.
#[cfg(not(target_os = "linux"))]
mod others {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::thread;

    use leasehold::crossbeam_channel::Sender;
    use signal_hook::consts::{SIGCONT, SIGTSTP};
    use signal_hook::flag;
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    /// 1 if TSTP was received, and neither answered nor taken back by a CONT; 0 otherwise.
    static PENDING: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

    /// Sends SIGTSTP to `signals` for a stop that is pending.
    pub(crate) fn catch(signals: Sender<i32>) -> io::Result<()> {
        let pending = PENDING.get_or_init(Arc::default);
        flag::register_usize(SIGTSTP, Arc::clone(pending), 1)?;
        flag::register_usize(SIGCONT, Arc::clone(pending), 0)?;
        let mut stops = Signals::new([SIGTSTP])?;
        let announce = move || stops.forever().try_for_each(|signal| signals.send(signal));
        thread::Builder::new()
            .name("leasehold-stops".into())
            .spawn(announce)?;
        Ok(())
    }

    /// Returns whether TSTP was received, and neither answered nor taken back by a CONT.
    pub(crate) fn is_pending() -> bool {
        PENDING
            .get()
            .is_some_and(|pending| pending.load(Ordering::SeqCst) == 1)
    }

    /// Stops this process until it receives CONT, if a stop is pending.
    pub(crate) fn suspend() {
        let pending = PENDING.get();
        if pending.is_some_and(|pending| pending.swap(0, Ordering::SeqCst) == 1) {
            stop();
        }
    }

    /// Stops this process until it receives CONT, unless it `is_over`.
    pub(crate) fn suspend_unless(is_over: impl FnOnce() -> bool) {
        discard();
        if !is_over() {
            stop();
        }
    }

    /// Discards the stops that are pending.
    pub(crate) fn discard() {
        if let Some(pending) = PENDING.get() {
            pending.store(0, Ordering::SeqCst);
        }
    }

    /// No thread blocks TSTP.
    pub(crate) fn begin_unblocked() {}

    pub(crate) fn end_unblocked() {}

    fn stop() {
        // Fails only for a signal that `signal_hook` does not know.
        let _ = emulate_default_handler(SIGTSTP);
    }
}
