//! Many FIFO lists over one range of small numbers; each number is in at most one list. Every operation is O(1) and allocates nothing.

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Links {
    previous: u32,
    next: u32,
    /// The list that it is in; [`NONE`] for no list.
    list: u32,
}

/// Lists `0..list_count` of items `0..item_count`.
#[derive(Debug)]
pub(crate) struct Lists {
    links: Vec<Links>,
    /// First and last item.
    ends: Vec<(u32, u32)>,
}

impl Lists {
    pub(crate) fn new(list_count: u32, item_count: u32) -> Self {
        Self {
            links: vec![Links { previous: NONE, next: NONE, list: NONE }; item_count as usize],
            ends: vec![(NONE, NONE); list_count as usize],
        }
    }

    /// The first (oldest) item of the list.
    pub(crate) fn first(&self, list: u32) -> Option<u32> {
        let first = self.ends[list as usize].0;
        (first != NONE).then_some(first)
    }

    /// Appends an item, taking it from the list that it was in.
    pub(crate) fn push(&mut self, list: u32, item: u32) {
        self.remove(item);
        let (first, last) = &mut self.ends[list as usize];
        self.links[item as usize] = Links { previous: *last, next: NONE, list };
        match *last {
            NONE => *first = item,
            last => self.links[last as usize].next = item,
        }
        *last = item;
    }

    /// Takes an item from its list, if it is in one.
    pub(crate) fn remove(&mut self, item: u32) {
        let Links { previous, next, list } = self.links[item as usize];
        if list == NONE {
            return;
        }
        match previous {
            NONE => self.ends[list as usize].0 = next,
            previous => self.links[previous as usize].next = next,
        }
        match next {
            NONE => self.ends[list as usize].1 = previous,
            next => self.links[next as usize].previous = previous,
        }
        self.links[item as usize].list = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_in_the_order_they_came() {
        let mut lists = Lists::new(2, 5);
        for item in 0..5 {
            lists.push(0, item);
        }
        lists.push(1, 0); // the first
        lists.push(1, 2); // one within
        lists.push(1, 4); // the last
        let drain = |lists: &mut Lists, list| {
            let mut items = vec![];
            while let Some(item) = lists.first(list) {
                items.push(item);
                lists.remove(item);
            }
            items
        };
        assert_eq!(drain(&mut lists, 0), [1, 3]);
        assert_eq!(drain(&mut lists, 1), [0, 2, 4]);
        lists.remove(3);
        assert_eq!(lists.first(0), None);
    }
}
