//! Deliberate mistakes, switched on by the simulation and by the models of the threads alone: they
//! must find each of them.

#[cfg(any(sim, threads))]
use std::cell::Cell;

macro_rules! mistakes {
    (kernel { $($(#[$doc:meta])* $name:ident,)+ }
     others { $($(#[$of_other:meta])* $other:ident,)+ }) => {
        /// A mistake in the kernel, in sets, or in what else is simulated.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Mutant {
            $($(#[$doc])* $name,)+
            $($(#[$of_other])* $other,)+
        }

        #[cfg(sim)]
        impl Mutant {
            /// The mistakes that the simulation must find.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

mistakes! {
    kernel {
        /// Nobody asks for the line after a lease has ended.
        NobodyAsksAfterTheEnd,
        /// After a lease has ended, a later attempt stays later.
        LaterAttemptStaysLater,
        /// A grant counts from the refresh that reports it.
        GrantCountsFromRefresh,
        /// A renewal counts from its reply.
        RenewalCountsFromReply,
        /// Any answer ends the release of a command that may still run.
        KeySeenIsAnyAnswer,
        ReleaseMessagesAreIgnored,
        /// A wake-up that comes while a command is under way is forgotten.
        WakeUpIsForgotten,
        /// A granted request does not wait for the end of its command.
        WonIsForgotten,
        /// The undo of an unanswered command is written although its lease was given.
        UndoIsAlwaysWritten,
        /// The late answer of a command undoes what is being confirmed.
        LateAnswerUndoesConfirming,
        /// A refusal because of a command that nobody owns counts.
        OwnIdRefuses,
        /// The same for the reply to a refresh.
        OwnIdRefusesPlaces,
        /// The command of a caller that stands still never ends.
        StoppedCallerBlocks,
        /// A reply that its thread reads late is a silence of Redis, although others are answered.
        LateReaderIsSilence,
        /// Its command ends as overdue, although others are answered.
        LateReaderIsOverdue,
        /// When a command is sent, each waiting call is asked when it gives up.
        EachCallIsAsked,
        /// A plain release postpones nothing.
        PlainReleasesAddUp,
        /// The release of a caller that stands still never ends.
        StoppedReleaseBlocks,
        /// A lease that had expired before its reply arrived is not released.
        ExpiredGrantIsKept,
        /// That is not counted as a failure.
        ExpiredGrantIsNoFailure,
        /// A lease is given although the client is closed.
        ClosedClientGives,
        /// A guard reports that it holds a lease which is over by the wall clock.
        WallClockIsIgnored,
        /// The engine's sleep is not recorded.
        SleepIsNotRecorded,
        /// The eviction of a lease makes nobody ask.
        EvictionMakesNobodyAsk,
        /// A hand-off passes on the same token.
        TokenIsPassedOn,
        /// A call that leaves keeps its place.
        LeavingKeepsThePlace,
        /// A new subscription refreshes nothing.
        ListeningRefreshesNothing,
        /// Only the first thread that makes work due wakes the engine.
        WakeUpIsPromisedOnce,
        /// News about an id whose release is in flight count for that release.
        NewsEndTheReleaseInFlight,
        /// The end of a lease of the client does not count as a proof that the lock was taken.
        OwnLeaseProvesNothing,
        /// A release message does not count as a proof that the lock was taken.
        ReleaseMessageProvesNothing,
        /// Losses are noticed only when the schedule says that a renewal is due.
        LossesAreLate,
        /// A grant counts from its reply.
        GrantCountsFromReply,
        /// After a plain release, the place that is named asks no earlier than the others.
        NamedPlaceAsksLater,
        /// The engine sleeps until the next item, however far that is.
        SleepIsLong,
        /// A new master is not told of recent releases.
        RecentReleasesAreForgotten,
        /// Nobody asks once more before a deadline.
        NobodyAsksForDeadlines,
        /// A command on a caller's thread serves nobody once the line is empty.
        CallerIsNotServed,
        /// A lease that a command without a reply may have taken is not released.
        UnansweredIsForgotten,
        /// A closed client keeps its places.
        ClosedKeepsPlaces,
        /// The reply about one lease counts for another that was renewed with it.
        RenewalsAreMixedUp,
        /// A change of ttl without a reply counts as done.
        SetTtlIsCertain,
        /// A lease that another one has replaced is not lost.
        EvictedIsNotLost,
        /// A call that panics forgets the lease that a message has given it.
        PanicForgetsTheLease,
        /// The time of a lease of a quorum counts from the deciding vote.
        RoundCountsFromReply,
        /// An undo behind a proposal whose pipeline has ended needs any answer only.
        DeadPipelineIsAnyAnswer,
        /// A vote on an earlier proposal counts for the next one.
        LateVoteCounts,
        /// A command of the kernel that has ended ends again with a later vote.
        TicketEndsTwice,
        /// A round goes on although its time is over.
        RoundNeverEnds,
        /// An undo of the kernel is not told that a member will never answer about an id.
        LeftForgetsTheId,
        /// A member that has answered a release votes again on the next try.
        MemberVotesTwice,
        /// A member that joins a lease counts for the renewal that is under way.
        JoinVotesAtOnce,
        /// The refusals by several holders count together.
        RefusalsOfTwoAdd,
        /// Split votes count as a refusal by one of the holders.
        SplitNamesAHolder,
        /// A call fails because one member is not asked for its name.
        FullMemberRefuses,
        /// A round that is decided waits for the members that have not answered.
        HangingMemberIsAwaited,
        /// A proposal is sent to a server after its round is over.
        NotSentIsSentLate,
        /// A lost proposal is not undone where it has no answer yet.
        AskedIsNotUndone,
        /// A lost proposal is not undone where it may run later.
        UnknownIsNotUndone,
        /// A key of a proposal that is being undone refuses the next one.
        OwnIdRefusesRound,
        /// A release that finds nothing is final, although the acquiring command may run later.
        ReleaseEndsTheUnknown,
        /// A release that has no reply from a minority is not repeated there.
        MissingReleaseIsForgotten,
        /// A member whose key somebody has deleted joins again.
        DeletedIsHealed,
        /// A member joins in the renewal that has found its key gone.
        HealsBeforeTheOthers,
        /// A join that is granted after the end of its lease is not undone.
        LateJoinRevives,
        /// A member joins under the id that its key had before.
        JoinTakesTheOldId,
        /// A member joins with the first token of the lease, although later ones may be in use.
        JoinBringsTheFirstToken,
        /// A member that refuses a join by an id of the lease counts for it.
        OwnIdJoins,
        /// A late reply about an earlier key of a lease is about its present one.
        LateVoteOfAnotherId,
        /// A key of a member that has joined a lease counts for another holder.
        JoinedIsAnotherHolder,
        /// A member without the key counts for the lease.
        EmptySlotIsOurs,
        /// A lease is forgotten once it is not valid any more, although its keys last longer.
        LeaseIsForgottenEarly,
        /// A message about the release of a joined key is not told as one of its lease.
        MessageIsNotTranslated,
        /// A proposal is sent again although its release is behind it.
        ProposalIsResentLate,
        /// A change of ttl that may run later at one server is forgotten.
        LateShorteningIsForgotten,
        /// A token that is too low counts as a refusal.
        TooLowIsRefused,
        /// A release counts once all servers have announced it.
        AllMustAnnounce,
        /// A refusal counts that names a command which was undone before the reply was read.
        EndedUndoRefuses,
        /// A place is forgotten that was made before its command failed.
        RejectedEnterIsForgotten,
        /// A place is forgotten whose refresh failed.
        RejectedRefreshIsForgotten,
        /// A lease lingers until somebody asks.
        LingerNeverEnds,
        /// A call takes a lease that lingered for longer than it lasted.
        LingerOutlivesItsLease,
        /// After the loss of a lease that lingered, the next one can be taken from its holder.
        LostLeaseLingers,
        /// A call that takes a lease which lingers has the token of the holder before.
        RelockKeepsTheToken,
        /// A fair lock, or a set, takes the lease of a mutex that lingers.
        AnyKindTakesWhatLingers,
        /// A release that was not written, or only in part, counts as done.
        UnwrittenReleaseIsDone,
        /// A client that learns of a move forgets the places that it has.
        MovedPlacesAreForgotten,
        /// A set is valid as long as its first part.
        EndIsOfTheFirstPart,
        /// Each lost part of a set is reported as a loss of the set.
        EachPartIsTold,
        /// A loss that is found while a set is released is reported.
        EndingIsTold,
        /// A part that is lost before the set has them all does not count.
        BuildingForgetsALoss,
        /// A part is asked for although the one before was refused.
        NextWithoutTheOneBefore,
        /// A set that has lost a name keeps those above it.
        CutKeepsTheUpper,
        /// A set that has lost a name keeps its place in the queue of the one that it waited for.
        CutLeavesItsPlace,
        /// A set is held under the short ttl of its waiting.
        SetIsHeldShort,
        /// A part that no thread takes is renewed.
        UntakenIsRenewed,
        /// The parts of a set that is over are renewed.
        OverIsRenewed,
        /// The parts of a set are released at the end of its `max_hold`.
        MaxHoldReleasesParts,
        /// Each part of a set ends by `max_hold`.
        PartHasMaxHold,
        /// An operation of a set ends with that of its first part.
        OperationEndsWithTheFirst,
        /// A set asks for the names of the next slot although one was refused.
        NextSlotIsAsked,
        /// Split votes refuse a set that does not wait.
        SplitRefusesTheSet,
        /// A set does not look at messages that came between its refusal and its watch.
        WatchAfterTheRefusal,
    }
    others {
        /// Calls for a plain lock wait locally for the end of a part, which cannot be handed to
        /// them.
        LineWaitsForParts,
        /// A minority of the sentinels moves clients whose master serves.
        MinorityMovesClients,
        /// An old configuration is believed if the master does not answer.
        OldEpochIsBelieved,
        /// The renewal of each part of a set is reported as one of the set.
        EachPartIsRenewed,
        /// The engine reads the first item, and records its sleep in a second critical section.
        SleepIsReadFirst,
        /// A lease is put into the schedule after its lock was dropped.
        LeaseIsScheduledLate,
        /// A call that is cancelled looks for its outcome before it takes the lock of its shard.
        CancelLooksFirst,
        /// A renewal finds a lease lost that is being released.
        ReleasedIsLost,
        /// The end of an undo reaches its entry under the lock of the pending releases.
        UndoneUnderPending,
        /// Release messages do not wake calls for sets without queues.
        WatchesAreNotEnded,
        /// A call for a set does not look at messages that came while it asked.
        WatchBeginsAfterTheRefusal,
    }
}

#[cfg(any(sim, threads))]
thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Makes this mistake, in this thread.
#[cfg(any(sim, threads))]
pub(crate) fn switch_on(mutant: Option<Mutant>) {
    ON.set(mutant);
}

/// Runs a test without a mistake, and then with it: only then it must fail.
#[cfg(sim)]
pub(crate) fn is_needed(mutant: Mutant, test: impl Fn() -> bool) {
    assert!(test());
    switch_on(Some(mutant));
    let is_right = test();
    switch_on(None);
    assert!(!is_right, "{mutant:?} changes nothing");
}

#[cfg(any(sim, threads))]
pub(crate) fn is_on(mutant: Mutant) -> bool {
    ON.get() == Some(mutant)
}

/// The library makes none of these mistakes.
#[cfg(not(any(sim, threads)))]
pub(crate) const fn is_on(_: Mutant) -> bool {
    false
}
