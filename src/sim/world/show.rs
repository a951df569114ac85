//! The texts of a trace.

use super::{Answer, Cause, Command, Down, Message, SetOutcome, SetStep, Step, fault, key_of};
use crate::kernel::command::What;

pub(super) fn not_replicated() -> fault::Fault {
    fault::Fault::NotReplicated(crate::error::Error::Closed)
}

pub(super) fn rejected() -> fault::Fault {
    fault::Fault::Rejected(crate::error::Error::Closed)
}

pub(super) fn unknown() -> fault::Fault {
    fault::Fault::Unknown(Cause::text("no reply"))
}

pub(super) fn shown(step: &Step) -> String {
    match step {
        Step::Send(command, _) => format!("send {}", shown_command(command)),
        Step::Park(_) => "park".into(),
        Step::Done(outcome) => format!("done {outcome:?}"),
    }
}

pub(super) fn shown_set(step: &SetStep) -> String {
    let all = |commands: &[Command]| {
        let shown: Vec<_> = commands.iter().map(shown_command).collect();
        shown.join(", ")
    };
    match step {
        SetStep::Send(commands, _) => format!("send {}", all(commands)),
        SetStep::GiveBack(commands, _) => format!("give back {}", all(commands)),
        SetStep::Park(_) => "park".into(),
        SetStep::Done(SetOutcome::Held(lease)) => format!("done {:?}", lease.holder_ids()),
        SetStep::Done(outcome) => format!("done {outcome:?}"),
    }
}

pub(super) fn shown_command(command: &Command) -> String {
    let text = |text: &Vec<u8>| String::from_utf8_lossy(text).into_owned();
    if let What::RenewMany { keys, ids, ttl } = &command.what {
        let texts = |all: &[Vec<u8>]| all.iter().map(text).collect::<Vec<_>>().join(" ");
        return format!("RenewMany {} for {} {ttl:?}", texts(keys), texts(ids));
    }
    format!("{} {:?}", text(&key_of(&*command.lock)), command.what)
}

pub(super) fn shown_end(end: &Result<Answer, fault::Fault>) -> String {
    match end {
        Ok(answer) => shown_answer(answer),
        Err(fault) => format!("no reply: {fault}"),
    }
}

pub(super) fn shown_answer(answer: &Answer) -> String {
    let by = |by: &crate::protocol::refusal::RefusedName| {
        let holder = String::from_utf8_lossy(&by.holder).into_owned();
        let holder = holder.get(..12).unwrap_or(&holder).to_owned();
        format!("by {holder} for {:?}", by.remaining)
    };
    match answer {
        Answer::Refused(refusal) => format!("Refused {}", by(refusal)),
        Answer::Places(found, refusal) => format!("{found:?} {}", by(refusal)),
        Answer::Undone(undone) => format!("Undone {:?}", undone.removed),
        Answer::Foreign(holder) => format!("Foreign {}", String::from_utf8_lossy(holder)),
        answer => format!("{answer:?}"),
    }
}

pub(super) fn shown_down(down: &Down) -> String {
    match down {
        Down::Reply(answer) => format!("{answer:?}"),
        Down::Hello => "hello".into(),
        Down::Error | Down::Rejected | Down::Again(_) | Down::NotReplicated => "an error".into(),
        Down::Message(Message::Inbox(payload)) => String::from_utf8_lossy(payload).into(),
        Down::Message(Message::Released(_, payload)) => {
            format!("released {}", String::from_utf8_lossy(payload))
        }
        Down::Subscribed(channel) => format!("subscribed {}", channel.is_some()),
    }
}
