//! Pages of a list.

use crate::cursor::Cursor;

/// Some of a list, and where it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, Id> {
    pub items: Vec<T>,
    /// What to ask with for more; nothing when this was the end.
    pub next: Option<Cursor<Id>>,
}

impl<T, Id> Page<T, Id> {
    /// From one row more than was asked for: that one only says that there is more.
    pub(crate) fn cut(mut items: Vec<T>, limit: PageLimit, at: impl FnOnce(&T) -> Cursor<Id>) -> Self {
        let has_more = items.len() > limit.get() as usize;
        items.truncate(limit.get() as usize);
        let next = if has_more { items.last().map(at) } else { None };
        Self { items, next }
    }
}

/// Most items of a page: 1 to 1,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimit(u32);

impl PageLimit {
    /// The most there is.
    pub const MAX: Self = Self(1000);

    /// Takes 1 to 1,000.
    pub fn parse(items: u32) -> Option<Self> {
        (1..=Self::MAX.0).contains(&items).then_some(Self(items))
    }

    pub fn get(self) -> u32 {
        self.0
    }

    /// One more, to know whether there is more.
    pub(crate) fn and_one(self) -> u32 {
        self.0 + 1
    }
}

impl Default for PageLimit {
    fn default() -> Self {
        Self(100)
    }
}
