//! Pages of a list.

use crate::cursor::Cursor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, Id> {
    pub items: Vec<T>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<Cursor<Id>>,
}

impl<T, Id> Page<T, Id> {
    /// `items` has one row more than requested, which only shows that there is a next page.
    pub(crate) fn cut(mut items: Vec<T>, limit: PageLimit, at: impl FnOnce(&T) -> Cursor<Id>) -> Self {
        let has_more = items.len() > limit.get() as usize;
        items.truncate(limit.get() as usize);
        let next = if has_more { items.last().map(at) } else { None };
        Self { items, next }
    }
}

/// Maximum number of items per page: 1 to 1,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimit(u32);

impl PageLimit {
    pub const MAX: Self = Self(1000);

    /// Accepts 1 to 1,000.
    pub fn parse(items: u32) -> Option<Self> {
        (1..=Self::MAX.0).contains(&items).then_some(Self(items))
    }

    pub const fn get(self) -> u32 {
        self.0
    }

    /// One more than the limit, to know whether there is a next page.
    pub(crate) fn and_one(self) -> u32 {
        self.0 + 1
    }
}

impl Default for PageLimit {
    fn default() -> Self {
        Self(100)
    }
}
