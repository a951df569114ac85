//! Plans whose runs violated a property once: each test says what they show.

use super::run;

fn assert_keeps(plan: &str) {
    let end = run(&plan.parse().expect("a plan"), false);
    assert!(end.is_ok(), "{:?}", end.err().map(|it| it.violation));
}

/// Two threads carried out their effects in the wrong order: that of an entry which had ended, and
/// that of the next one.
#[test]
fn a_late_unlisten_leaves_a_newer_subscription() {
    assert_keeps(
        "seed=60109 family=Calm clients=3 threads=3 ops=1 names=2 kinds=NoQueue ttl=4000000 \
         handoffs=0 backoff=0 drifts=0,0,0 faults=",
    );
}

/// The reply that refused a call arrived after the message about the end of what had refused it.
#[test]
fn a_call_refused_by_what_has_ended_asks_at_once() {
    assert_keeps(
        "seed=30 family=Calm servers=1 clients=4 threads=1 ops=15 names=2 kinds=NoQueue \
         ttl=4000000 handoffs=0 backoff=0 drifts=0,0,0,0 faults=",
    );
}

/// The id of a lease that its own client is releasing is no refusal, but it leaves a place: its
/// grant came by a message that the client did not listen to.
#[test]
fn a_place_behind_a_lease_of_its_own_client_hears_its_grant() {
    assert_keeps(
        "seed=1089945596723 family=Calm servers=1 clients=2 threads=1 ops=2 names=1 kinds=Fair \
         ttl=1694000 handoffs=0 backoff=0 drifts=0,0 faults=",
    );
}

/// The call waits for the lease of its own client, which ends by the client's clock.
#[test]
fn a_clock_that_is_set_forward_does_not_end_the_wait_for_an_own_lease() {
    assert_keeps(
        "seed=291528408039 family=Clocks servers=1 clients=1 threads=2 ops=1 names=1 kinds=Mutex \
         ttl=4398000 handoffs=0 backoff=0 drifts=0,0 faults=193220:Ahead.7294491",
    );
}

/// Its votes were as old as the server that hung: at a deadline they say nothing.
#[test]
fn a_split_vote_is_as_old_as_its_commands() {
    assert_keeps(
        "seed=516054237177 family=Quorum servers=5 clients=2 threads=1 ops=3 names=1 \
         kinds=NoQueue ttl=2422000 handoffs=0 backoff=0 drifts= \
         faults=135455:Server.3.Hang.14790000,217494:Stop.0.None.2192219,\
         898129:Stop.1.None.1849770,1068904:Server.2.Slow.1.Engine.281128,\
         1187148:Server.2.Cut.1.Engine.true,1207547:Server.0.FlushScripts,\
         1362989:StopNext.0.Engine.3520364,2893015:Server.0.Cut.0.Engine.false",
    );
}

/// The old master had run it, and its reply came after the client had learnt of the new one.
#[test]
fn a_release_that_meets_a_failover_is_repeated() {
    assert_keeps(
        "seed=593176543667 family=Failover servers=1 clients=3 threads=2 ops=2 names=1 \
         kinds=NoQueue ttl=4000000 handoffs=4 backoff=0 drifts=0,0,0 faults=16353:Snapshot,\
         28251:Failover,1054591:Cut.2.Sub.true,1341203:Cut.1.Engine.true,\
         3655787:StopNext.1.Sub.4746851",
    );
}

/// The last call in line counted the lease of its own client as its last refusal.
#[test]
fn a_call_that_its_own_client_refuses_leaves_no_place() {
    assert_keeps(
        "seed=76 family=Backoff servers=1 clients=3 threads=3 ops=6 names=2 kinds=Mutex,Fair \
         ttl=4000000 handoffs=0 backoff=400 drifts=0,0,0 faults=2431246:Slow.2.Sub.1135106",
    );
}

/// The last attempt of a call for a set was refused: the call did not return.
#[test]
fn a_set_without_queues_is_refused_after_its_last_attempt() {
    assert_keeps(
        "seed=1 family=Sets servers=1 clients=2 threads=2 ops=3 names=2 kinds=PlainSet ttl=4000000 \
         handoffs=0 backoff=1000 drifts=0,0 faults=",
    );
    assert_keeps(
        "seed=49 family=Quorum servers=3 clients=4 threads=2 ops=4 names=2 kinds=PlainSet \
         ttl=393000 handoffs=0 backoff=300 drifts= faults=729973:Server.2.Slow.3.Engine.119043,\
         826952:Server.2.Slow.3.Engine.371942,982387:Server.2.Cut.3.Engine.false,\
         1012564:Server.1.Cut.3.Engine.false,1012876:Server.2.Cut.3.Engine.false,\
         1178164:Server.2.Slow.0.Engine.35495,2209278:Server.1.Cut.0.Engine.false,\
         2345471:Server.0.Foreign.0.361978,2577088:Server.2.Twice.0.Engine,\
         2871206:Server.2.Cut.2.Engine.false,3360828:Cancel.1.1,\
         3469228:Server.0.Cut.3.Engine.true",
    );
}

/// The command of a set whose call had left refused a call for one of the names.
#[test]
fn a_call_refused_by_what_a_set_has_left_is_not_refused() {
    assert_keeps(
        "seed=20001371 family=Sets servers=1 clients=2 threads=1 ops=11 names=3 \
         kinds=PlainSet,NoQueue ttl=4000000 handoffs=0 backoff=0 drifts=0,0 \
         faults=1471340:Slow.0.Engine.440942",
    );
}

/// The client is closed, and its guard of the same set still lives.
#[test]
fn a_call_for_a_set_of_a_closed_client_says_so() {
    assert_keeps(
        "seed=20010374 family=Quorum servers=3 clients=2 threads=3 ops=6 names=2 kinds=PlainSet \
         ttl=1556000 handoffs=0 backoff=0 drifts= faults=151174:Server.0.Forget,\
         2420598:Server.2.Cut.0.Engine.true,2961530:Server.1.Twice.0.Engine,3900220:Shutdown.0",
    );
}

/// It had waited for the first name, and its deadline came while it asked for the second one.
#[test]
fn a_set_that_waited_for_one_of_its_names_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=59 family=Sets servers=1 clients=3 threads=3 ops=11 names=2 kinds=Mutex,Set \
         ttl=2322000 handoffs=2 backoff=0 linger=0 drifts=0,0,0 faults=",
    );
}

/// A set of its client had kept the name when it would have asked, and got all its names later.
#[test]
fn a_call_behind_a_set_of_its_client_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=1397 family=Sets servers=1 clients=2 threads=3 ops=5 names=2 kinds=Mutex,Set \
         ttl=2322000 handoffs=2 backoff=0 linger=0 drifts=0,0,0 faults=",
    );
}

/// Another call of its client held one of the names at its deadline.
#[test]
fn a_set_without_queues_behind_a_lease_of_its_client_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=34 family=Sets servers=1 clients=2 threads=3 ops=7 names=3 \
         kinds=SlotSet.false,NoQueue ttl=2367000 handoffs=0 backoff=0 linger=0 drifts=0,0 faults=",
    );
}

/// The lock was released before its client heard the messages about it.
#[test]
fn a_set_without_queues_asks_when_messages_begin_to_come() {
    assert_keeps(
        "seed=491 family=Sets servers=1 clients=2 threads=2 ops=4 names=3 kinds=PlainSet,NoQueue \
         ttl=1469000 handoffs=0 backoff=0 linger=0 drifts=0,0 faults=",
    );
}

/// Messages of the name came already, for an earlier wait of its client that had ended: nobody told
/// the call so, and it waited for a pause.
#[test]
fn a_set_without_queues_asks_when_messages_come_already() {
    assert_keeps(
        "seed=353 family=Sets servers=1 clients=4 threads=2 ops=10 names=3 kinds=PlainSet,NoQueue \
         ttl=1879000 handoffs=2 backoff=0 linger=0 drifts=4973,-1676,-3526,-4880 faults=",
    );
}

/// A set of its client gave the name back just before its deadline.
#[test]
fn a_call_behind_a_name_that_a_set_gives_back_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=1097485983151 family=Linger servers=1 clients=3 threads=2 ops=7 names=2 \
         kinds=NoQueue,Set ttl=706000 handoffs=7 backoff=0 linger=35112 drifts=3725,382,-4852 \
         faults=",
    );
}

/// It had lingered, and the engine stood still until after its end.
#[test]
fn a_lingering_lease_that_expires_is_released() {
    assert_keeps(
        "seed=255072713177 family=Linger servers=1 clients=2 threads=3 ops=6 names=2 kinds=Mutex \
         ttl=4000000 handoffs=2 backoff=0 linger=1069412 drifts=0,0 \
         faults=330637:Twice.0.Caller.2,839445:Panic.0.2,1789914:Stop.0.Some.Caller.1.709889,\
         1892332:StopNext.1.Engine.7105080,2493042:Errors.1002530,3285692:Stall.2340255,\
         3444461:Twice.0.Engine,3929356:Delete.1",
    );
}

/// A call ended the linger, and its deadline came: nobody had held the lock.
#[test]
fn a_lingering_lease_is_no_proof_that_the_lock_was_taken() {
    assert_keeps(
        "seed=111482810161 family=Linger servers=1 clients=4 threads=2 ops=2 names=2 \
         kinds=Mutex,Mutex,Fair,Set ttl=1716000 handoffs=4 backoff=0 linger=146 \
         drifts=0,0,0,0 \
         faults=838191:Kill.1,988340:Cut.0.Caller.1.false,1304738:StopNext.2.Caller.0.5896205,\
         1679756:StopNext.1.Sub.1416116,2012889:Cut.3.Sub.true,2036962:Twice.0.Caller.0,\
         3844667:LoseMessages.0.312866",
    );
}

/// The client held the lock when it would have asked for the deadline, and lost it before that.
#[test]
fn a_call_behind_a_lease_that_is_lost_before_its_deadline_is_refused() {
    assert_keeps(
        "seed=815 family=Calm clients=2 threads=3 ops=6 names=1 kinds=Fair,Mutex ttl=4000000 \
         handoffs=1 backoff=0 drifts=0,0,0,0 faults=",
    );
}

/// The client stood still: the holder gave up before the engine read that its release had ended.
#[test]
fn a_release_that_ends_after_its_holder_has_left_proves_that_the_lock_was_taken() {
    assert_keeps(
        "seed=20060081 family=Quorum servers=3 clients=4 threads=3 ops=6 names=1 kinds=NoQueue \
         ttl=4000000 handoffs=4 backoff=0 drifts= faults=686679:Stop.0.None.2404580,\
         865457:Server.1.Foreign.0.294526,1205915:Server.1.Stall.956039,\
         2280625:Server.2.FlushScripts,2614868:Server.1.RestartEmpty,\
         3023492:Stop.3.Some.Sub.2579752",
    );
}

/// The holder had the lock until after the deadline, as far as the client knew, and released it.
#[test]
fn a_call_whose_refusal_ends_before_its_deadline_asks_again() {
    assert_keeps(
        "seed=20070374 family=Quorum servers=3 clients=4 threads=3 ops=11 names=1 kinds=NoQueue \
         ttl=4000000 handoffs=0 backoff=300 drifts= faults=",
    );
}

/// Each lease ended before its reply arrived, and calls of one client refused each other: that was
/// no silence. They ended once the link was fast.
#[test]
fn calls_that_get_no_lease_in_time_end_when_their_link_is_fast() {
    assert_keeps(
        "seed=1071754160308 family=ShortTtl servers=1 clients=3 threads=3 ops=29 names=1 \
         kinds=Mutex,Mutex,Fair ttl=491000 handoffs=1 backoff=0 drifts=-3241,3705,-4341 \
         faults=510488:Cut.0.Engine.true,760865:StopNext.0.Caller.0.459125,\
         1142332:Cut.1.Engine.false,1381116:Cut.0.Sub.true,1575070:Slow.1.Engine.247821",
    );
}

/// A proxy ran the command of a lease again, after its release and before the reply to that.
#[test]
fn command_that_runs_again_after_a_release_is_excused() {
    assert_keeps(
        "seed=912080084109 family=Backoff servers=1 clients=3 threads=3 ops=13 names=2 \
         kinds=Mutex ttl=2674000 handoffs=0 backoff=400 drifts=1994,-212,-3904 \
         faults=173684:LoseMessages.0.246854,548733:Twice.1.Engine,1463588:Stop.2.None.1977354,\
         1892468:LoseMessages.2.173302,2875145:Cut.1.Sub.false,3697384:Twice.0.Engine",
    );
}

/// The engine stood still: it had not begun the round that releases the lease.
#[test]
fn shutdown_leaves_a_release_to_its_round() {
    assert_keeps(
        "seed=67988440955 family=Quorum servers=3 clients=3 threads=2 ops=9 names=2 \
         kinds=PlainSet ttl=4000000 handoffs=0 backoff=0 drifts= \
         faults=1445974:Server.2.Slow.1.Engine.663379,1656962:Cancel.1.0,\
         2010938:Server.0.Stall.2079797,3134087:Stop.0.Some.Engine.3343295,\
         3284659:Server.0.Cut.2.Engine.false,3358982:Shutdown.0,3601150:Stop.0.None.411921,\
         3905083:Stop.2.None.3596448",
    );
}

/// One of three servers hung, and three rounds in a row waited for a slow command to another one.
#[test]
fn three_slow_rounds_of_a_quorum_with_a_hung_server_are_no_loss() {
    assert_keeps(
        "seed=804649943914 family=Quorum servers=3 clients=3 threads=1 ops=8 names=1 kinds=NoQueue \
         ttl=4000000 handoffs=0 backoff=0 linger=0 drifts= faults=294605:Server.0.Hang.14368000",
    );
}

/// The first name had refused the set, and another name's old refusal took the place of that: at
/// its deadline the set failed as if Redis were silent.
#[test]
fn an_old_refusal_does_not_replace_one_that_counts() {
    assert_keeps(
        "seed=1073486305995 family=Sets servers=1 clients=1 threads=2 ops=7 names=2 \
         kinds=SlotSet.true,Mutex ttl=4000000 handoffs=0 backoff=0 linger=0 drifts=0 faults=",
    );
}

/// The engine slept beyond the end of a key that nobody renewed: a place that lasts much longer
/// could wait, but the lock was free.
#[test]
fn a_place_is_refreshed_as_soon_as_the_lock_expires() {
    assert_keeps(
        "seed=406871823412 family=Calm servers=1 clients=2 threads=3 ops=8 names=2 kinds=Fair \
         ttl=1129000 handoffs=0 backoff=0 linger=0 drifts=0,0 faults=",
    );
}

/// Its caller stood still: the grant message came first, then the engine ended the command, and
/// then the reply to it undid what was becoming a lease.
#[test]
fn a_late_reply_does_not_undo_what_is_being_confirmed() {
    assert_keeps(
        "seed=859722562414 family=Moves servers=1 clients=2 threads=2 ops=16 names=2 \
         kinds=Mutex,Mutex,Fair ttl=2660000 handoffs=1 backoff=0 linger=0 drifts=0,0 \
         faults=112071:Move.182171,145043:LoseMessages.1.490457,293835:Stall.403197,\
         2427791:Stop.1.Some.Engine.384668,3499497:Stop.0.None.2965663",
    );
}

/// The set was refused because of a name, and its deadline came before the queue of the first one
/// answered: it failed as if Redis were silent.
#[test]
fn a_set_was_refused_before_it_entered_a_queue() {
    assert_keeps(
        "seed=357911587081 family=Sets servers=1 clients=3 threads=3 ops=28 names=2 kinds=Set \
         ttl=2859000 handoffs=0 backoff=0 linger=0 drifts=-1023,4530,2993 faults=",
    );
}

/// The release of a name that another call of the same client gave up waited for the pause between
/// two releases.
#[test]
fn a_name_that_is_given_up_is_released_without_a_pause() {
    assert_keeps(
        "seed=935397555612 family=Sets servers=1 clients=2 threads=2 ops=15 names=2 \
         kinds=SlotSet.false,NoQueue ttl=4000000 handoffs=3 backoff=0 linger=0 drifts=0,0 faults=",
    );
}

/// A renewal found a grant gone that had got no reply, and a master that was set back granted its
/// place again, to nobody.
#[test]
fn a_grant_that_is_gone_is_released_at_a_master_that_was_set_back() {
    assert_keeps(
        "seed=170560227451 family=Failover servers=1 clients=3 threads=2 ops=16 names=1 \
         kinds=Mutex,Fair ttl=4000000 handoffs=3 backoff=0 linger=0 drifts=0,0,0 \
         faults=329853:Kill.2,2412526:Snapshot,2577068:Failover",
    );
}

/// The line was refused by a lease of its own client whose release had already been answered: it
/// took the message about that release to be for others.
#[test]
fn a_line_that_an_ended_lease_of_its_client_refuses_asks_again() {
    assert_keeps(
        "seed=976937070955 family=Calm servers=1 clients=1 threads=3 ops=28 names=2 kinds=NoQueue \
         ttl=2956000 handoffs=2 backoff=0 linger=0 drifts=0 faults=",
    );
}

/// A set was refused by a place of its own client which had been granted the lock and waited with
/// pauses: at its deadline it failed as if Redis were silent.
#[test]
fn a_set_that_another_call_of_its_client_refuses_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=787198478853 family=Sets servers=1 clients=4 threads=3 ops=7 names=2 \
         kinds=Set,Set,Fair,Mutex ttl=2660000 handoffs=4 backoff=300 linger=0 \
         drifts=-4819,4636,-2089,-4253 faults=",
    );
}

/// Its client had a name when a set that waits with pauses looked, and released it before the
/// deadline came.
#[test]
fn a_set_that_a_lease_of_its_client_has_refused_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=305977987218 family=Sets servers=1 clients=2 threads=3 ops=12 names=3 \
         kinds=SlotSet.false,NoQueue ttl=1629000 handoffs=0 backoff=300 linger=0 \
         drifts=3503,-1656 faults=",
    );
}

/// The queue granted a call its place before the reply to its command, which therefore named that
/// call itself as the holder: no proof that the lock was taken.
#[test]
fn a_call_is_not_refused_by_its_own_command() {
    assert_keeps(
        "seed=195048650707 family=ShortTtl servers=1 clients=3 threads=1 ops=4 names=1 kinds=Fair \
         ttl=528000 handoffs=0 backoff=0 linger=0 drifts=0,0,0 faults=261009:Cut.0.Caller.0.true,\
         304961:StopNext.0.Sub.336335,1567216:Cut.0.Sub.false,1624907:Slow.2.Sub.383369,\
         1705147:StopNext.2.Engine.983732",
    );
}

/// A lease of its client refused it, whose release then got no reply: for a second, that refusal
/// counts like another holder's.
#[test]
fn a_set_that_a_lease_of_its_client_has_refused_within_a_second_is_refused() {
    assert_keeps(
        "seed=137543409230 family=Sets servers=1 clients=2 threads=3 ops=15 names=3 \
         kinds=SlotSet.false,NoQueue ttl=2355000 handoffs=0 backoff=0 linger=0 drifts=3774,-1691 \
         faults=1341420:Cut.0.Engine.false,1429477:Foreign.1.722175,\
         1955390:Slow.0.Caller.1.755065,2318585:Foreign.1.238885,\
         3765442:StopNext.1.Caller.2.4252609",
    );
    assert_keeps(
        "seed=700000306 family=Sets servers=1 clients=3 threads=2 ops=14 names=3 \
         kinds=SlotSet.false,NoQueue ttl=4000000 handoffs=0 backoff=300 linger=0 \
         drifts=-1344,855,-408 faults=3442579:Stop.0.Some.Caller.1.1982782",
    );
}

/// A client with a clock that was slewed by 9.5 % held a lock that the server had given away.
#[test]
fn a_lease_by_a_clock_that_is_slewed_ends_before_its_key() {
    assert_keeps(
        "seed=144 family=Faults servers=1 clients=2 threads=2 ops=10 names=1 kinds=Fair ttl=1410000 \
         handoffs=0 backoff=0 linger=0 drifts=47560,-94900,65140 \
         faults=312134:Cancel.0.1,3471001:Cut.1.Engine.true",
    );
}

/// A hypervisor paused the machine of a holder for longer than its lease lasted: by the clock that
/// counts, it went on holding the lock.
#[test]
fn a_lease_that_a_pause_of_the_machine_outlasted_is_not_held() {
    assert_keeps(
        "seed=0 family=Clocks servers=1 clients=2 threads=1 ops=1 names=1 kinds=NoQueue ttl=5116000 \
         handoffs=0 backoff=0 linger=0 drifts=0,0 faults=2275577:Pause.1.13774837",
    );
}

/// The release was the fourth, with a bound of three: a failover brought its key back for a ttl.
#[test]
fn a_lock_whose_release_was_forgotten_is_idle_for_a_ttl_at_most() {
    assert_keeps(
        "seed=489617653278 family=Failover servers=1 clients=1 threads=3 ops=6 names=2 kinds=Fair \
         ttl=4000000 handoffs=0 backoff=0 linger=0 drifts=0 low=Recent \
         faults=22887:Snapshot,118343:Failover,1880312:LoseMessages.0.517222,1935499:Panic.0.1,\
         2015866:LoseMessages.0.435821,2463077:Cancel.0.0,3375771:LoseMessages.0.337615",
    );
}

/// The machine of the client was paused: its clock says later that the time of a release is over.
#[test]
fn a_release_of_a_paused_client_ends_that_much_later() {
    assert_keeps(
        "seed=301373327498 family=Clocks servers=1 clients=1 threads=1 ops=15 names=1 kinds=NoQueue \
         ttl=5981000 handoffs=0 backoff=0 linger=0 drifts=0 \
         faults=127859:Cut.0.Engine.true,3127970:Pause.0.12564990",
    );
}

/// A lease without renewal that was in doubt after a pause of its machine counted on when Redis
/// still had the key, whose end a clock that was set back had only put off.
#[test]
fn a_lease_in_doubt_does_not_outlast_a_key_that_a_clock_set_back_has_kept() {
    assert_keeps(
        "seed=656495996560 family=Clocks servers=1 clients=3 threads=2 ops=6 names=1 kinds=Fair \
         ttl=3545000 handoffs=0 backoff=0 linger=0 drifts=0,0,0 \
         faults=848873:Pause.2.6621556,1342874:LoseMessages.1.332350,2635531:Cancel.0.1,\
         3236931:Back.5716451",
    );
}

/// An attempt was refused by a call of the same client that waited, and nothing was known of the
/// holder: that was taken for the last refusal, and at its deadline the set failed as if Redis were
/// silent.
#[test]
fn a_set_without_queues_remembers_its_last_refusal_with_a_holder() {
    assert_keeps(
        "seed=98 family=Sets servers=1 clients=4 threads=3 ops=8 names=2 \
         kinds=SlotSet.false,NoQueue ttl=323000 handoffs=2 backoff=0 linger=0 \
         drifts=-1983,3128,-3320,-3920 faults=",
    );
}

/// Each attempt of a waiting set without queues was refused without a command, because a call of
/// the same client waited for one of the names.
#[test]
fn a_waiting_set_without_queues_asks_beside_the_other_calls_of_its_client() {
    assert_keeps(
        "seed=521 family=Sets servers=1 clients=4 threads=3 ops=3 names=3 kinds=PlainSet,NoQueue \
         ttl=2244000 handoffs=0 backoff=0 linger=0 drifts=0,0,0,0 faults=",
    );
}

/// The thread stood still before it sent its commands, and the engine ended them: the set said that
/// its names were taken.
#[test]
fn a_set_that_nobody_refused_is_not_refused_at_its_deadline() {
    assert_keeps(
        "seed=612 family=Sets servers=1 clients=1 threads=1 ops=2 names=3 kinds=Set ttl=4000000 \
         handoffs=0 backoff=0 linger=0 drifts=0,0 \
         faults=541928:Errors.629628,1201677:StopNext.0.Caller.0.7452828",
    );
}

/// It had waited for three seconds for its first name, whose renewal was due when it was granted:
/// the engine took its thread for one that stood still, and gave the name up.
#[test]
fn a_set_keeps_its_first_name_however_long_it_has_waited_for_that() {
    assert_keeps(
        "seed=1173 family=Sets servers=1 clients=2 threads=3 ops=4 names=1 kinds=Set ttl=1871000 \
         handoffs=0 backoff=0 linger=0 drifts=0,0 faults=937103:Kill.0,\
         1036795:StopNext.0.Sub.473732,2230691:Slow.1.Engine.405883,\
         2733643:LoseMessages.0.145911,3551364:Stop.0.None.2988112",
    );
}

/// A release message came half a millisecond before the deadline, and the round that it caused was
/// open then: the call failed as if the servers were silent, for its last refusal was 1.9 s old.
#[test]
fn a_call_that_has_just_heard_of_a_release_is_refused_at_its_deadline() {
    assert_keeps(
        "seed=30968491 family=Quorum servers=3 clients=4 threads=2 ops=7 names=1 kinds=NoQueue \
         ttl=4000000 handoffs=0 backoff=0 linger=0 drifts= faults=",
    );
}

/// The engine sleeps for a second of its own clock, which was slow by 9 %.
#[test]
fn a_loss_is_told_within_a_second_of_the_clock_of_a_machine_that_was_suspended() {
    assert_keeps(
        "seed=445829783772 family=Clocks servers=1 clients=2 threads=2 ops=14 names=2 kinds=Mutex \
         ttl=3957000 handoffs=1 backoff=0 linger=0 drifts=13400,-93220 \
         faults=1286951:Ahead.925165,1319984:Cut.1.Engine.false,1380480:Suspend.1.8458669,\
         1665387:Errors.1978346,3791177:Suspend.0.2148090",
    );
}

/// A place that its call had left, and whose undo the new master had not run, was granted after the
/// failover: with room for only three recent releases, its client had forgotten the undo.
#[test]
fn a_place_whose_undo_was_forgotten_stays_for_a_ttl_after_a_failover() {
    assert_keeps(
        "seed=465905278820 family=Failover servers=1 clients=2 threads=2 ops=10 names=1 \
         kinds=Mutex,Mutex,Fair ttl=2847000 handoffs=0 backoff=0 linger=0 drifts=0,0 low=Recent \
         faults=1526594:Panic.0.0,2114619:Snapshot,2264601:Failover",
    );
}
