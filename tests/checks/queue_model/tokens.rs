//! Promise: every holder has a higher token than all holders before it. If the key is deleted, the
//! tokens still differ.

use models::assert_found;
use models::queue::{Broken, Flaw, Rules, State, holds, long_holds};

use super::{PROMPT, SAFETY, start};

/// Two clients that enter once, and send no refreshes or renewals.
const TOKENS: Rules = Rules {
    calls: 0,
    has_tokens: true,
    ..SAFETY
};

/// Two clients that enter twice each.
const PROMPT_TOKENS: Rules = Rules {
    clients: 2,
    entries: 2,
    has_tokens: true,
    ..PROMPT
};

/// Returns a start at which a second thread of each client may want the lock, too. The client's
/// place then wants a block of tokens.
fn with_threads(rules: &Rules) -> State {
    let mut state = start(rules);
    for client in &mut state.clients {
        client.arriving = 1;
    }
    state
}

#[test]
fn tokens_rise_from_thread_to_thread() {
    let mut state = start(&TOKENS);
    state.clients[0].arriving = 1;
    assert_eq!(holds(&TOKENS, state), Ok(()));
}

#[test]
fn tokens_rise_from_turn_to_turn() {
    let state = with_threads(&PROMPT_TOKENS);
    assert_eq!(holds(&PROMPT_TOKENS, state), Ok(()));
}

#[test]
fn tokens_rise_although_something_is_lost() {
    let rules = Rules {
        entries: 1,
        ..PROMPT_TOKENS
    };
    let state = State {
        losses: 2,
        ..with_threads(&rules)
    };
    assert_eq!(holds(&rules, state), Ok(()));
}

#[test]
fn tokens_rise_from_first_attempts_to_grants() {
    let rules = Rules {
        tries_first: true,
        ..PROMPT_TOKENS
    };
    let mut state = start(&rules);
    state.clients[0].arriving = 1;
    state.plain_releases = 1;
    assert_eq!(holds(&rules, state), Ok(()));
}

/// The holder of the deleted key does not know of the deletion, and keeps its token. Later holders
/// have other tokens.
#[test]
fn tokens_differ_although_the_key_is_deleted() {
    let state = State {
        deletions: 1,
        ..start(&TOKENS)
    };
    assert_eq!(holds(&TOKENS, state), Ok(()));
}

#[test]
fn a_grant_must_draw_a_token() {
    let rules = PROMPT_TOKENS.with(Flaw::GrantDrawsNoToken);
    assert_found(holds(&rules, start(&rules)), Broken::Token);
}

#[test]
fn a_grant_must_keep_the_whole_block() {
    let rules = PROMPT_TOKENS.with(Flaw::BlockIsNotKept);
    assert_found(holds(&rules, with_threads(&rules)), Broken::Token);
}

/// If another thread comes after the grant, the client wants more tokens than it was granted.
#[test]
fn a_client_must_not_use_more_tokens_than_it_was_granted() {
    let rules = PROMPT_TOKENS.with(Flaw::TakesWhatItWantsNow);
    assert_found(holds(&rules, with_threads(&rules)), Broken::Token);
}

/// If the grant message is lost, the reply contains the last token of the block. The tokens after
/// it are not reserved.
#[test]
fn a_token_in_the_reply_to_a_refresh_must_not_begin_a_block() {
    let rules = PROMPT_TOKENS.with(Flaw::RefreshGivesABlock);
    let state = State {
        losses: 1,
        ..with_threads(&rules)
    };
    assert_found(holds(&rules, state), Broken::Token);
}

#[test]
fn tokens_rise_from_turn_to_turn_although_something_is_lost_in_a_long_search() {
    let rules = Rules {
        tries_first: true,
        ..PROMPT_TOKENS
    };
    let state = State {
        plain_releases: 1,
        losses: 1,
        ..with_threads(&rules)
    };
    assert_eq!(long_holds(&rules, state), Ok(()));
}

#[test]
fn tokens_rise_among_three_clients_in_a_long_search() {
    let rules = Rules {
        clients: 3,
        entries: 1,
        ..PROMPT_TOKENS
    };
    let state = State {
        disconnections: 1,
        ..with_threads(&rules)
    };
    assert_eq!(long_holds(&rules, state), Ok(()));
}

#[test]
fn tokens_differ_although_a_key_is_deleted_and_something_is_lost_in_a_long_search() {
    let rules = Rules {
        tries_first: true,
        ..PROMPT_TOKENS
    };
    let mut state = start(&rules);
    state.clients[0].arriving = 1;
    (state.deletions, state.losses) = (1, 1);
    assert_eq!(long_holds(&rules, state), Ok(()));
}
