//! The reply to an inspection of a semaphore.

use std::time::Duration;

use crate::held::Held;
use crate::holder::Holder;
use crate::name::Name;
use crate::protocol::reply::Reply;
use crate::token::FencingToken;

/// The permits of a semaphore that are out, as an inspection found them.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct PermitsOut {
    /// How many permits are out.
    pub(crate) out: u64,
    /// The last token drawn, if it is known.
    pub(crate) last_token: Option<FencingToken>,
    pub(crate) holders: Vec<Holder>,
}

impl PermitsOut {
    pub(crate) fn of(self, name: Name) -> Held {
        Held::of_permits(name, self.out, self.holders, self.last_token)
    }

    /// Reads the reply to an inspection; `None` if the script cannot give it.
    pub(super) fn read(reply: Reply) -> Option<Self> {
        let items = reply.into_list()?;
        let [out, token, holders @ ..] = &*items else {
            return None;
        };
        let digits = token.clone().into_text_or_nil()?;
        // A foreign client may have written anything.
        let last_token = digits.and_then(|digits| FencingToken::parse(&digits));
        let (holders, rest) = holders.as_chunks();
        let read = |[member, left]: &[Reply; 2]| match (member, left.count()) {
            (Reply::Text(member), Some(left)) => {
                Some(Holder::of_permits(member, Duration::from_millis(left)))
            }
            _ => None,
        };
        let holders: Vec<Option<Holder>> = holders.iter().map(read).collect::<Option<_>>()?;
        rest.is_empty().then_some(Self {
            out: out.count()?,
            last_token,
            // Leaves out members that are no holder ids: another program has written them.
            holders: holders.into_iter().flatten().collect(),
        })
    }
}
