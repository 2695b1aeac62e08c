//! Finds values in a stream of bytes, and replaces them by asterisks of the same length.
//!
//! An automaton (Aho and Corasick's) follows all forms of all values at once. INVARIANT: the result doesn't depend on how the
//! stream is cut into chunks: a byte is replaced if and only if it belongs to an occurrence of some form.
//!
//! For that, the last bytes are held back until the next ones have come: one less than the longest form has, whatever they
//! are. INVARIANT: how much is held back, and for how long, doesn't depend on what the bytes are. If only beginnings of a value were
//! held back, a sandbox that lets a server send bytes of its choice could guess the value byte by byte from what is delayed.
//!
//! A peer may wait for an answer before it sends more, and what is held back may be the end of its message. So all held bytes
//! may be [released](Scrubber::release) when nothing comes for a while. The rest of an occurrence is then still replaced.

use std::sync::Arc;

use hyper::body::Bytes;
use zeroize::{Zeroize as _, Zeroizing};

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// The forms of all values of a session. They are overwritten when the last scrubber is gone.
pub struct Patterns {
    nodes: Vec<Node>,
    /// The children of the root by their byte.
    first: Box<[u32; 256]>,
    /// The length of the longest form.
    longest: usize,
    /// The same forms in lower case, as the name of a header shows them.
    names: Option<Box<Self>>,
}

/// A beginning of one or more forms.
struct Node {
    byte: u8,
    child: u32,
    sibling: u32,
    /// The longest proper end of this beginning that is a beginning, too.
    fall: u32,
    depth: u32,
    /// The longest form that ends here.
    ends: u32,
}

impl Patterns {
    pub fn new<'a>(forms: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let forms: Vec<&[u8]> = forms.into_iter().collect();
        // Growing would leave parts of the forms behind.
        let mut nodes = Vec::with_capacity(1 + forms.iter().map(|form| form.len()).sum::<usize>());
        nodes.push(Node::new(0, 0));
        let mut patterns = Self { nodes, first: Box::new([NONE; 256]), longest: 0, names: None };
        for form in forms {
            patterns.longest = patterns.longest.max(form.len());
            patterns.insert(form);
        }
        patterns.connect();
        patterns
    }

    /// Also finds forms in names of headers, which are in lower case, and have few characters.
    pub fn with_names<'a>(self, forms: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        let forms = forms.into_iter().filter(|form| form.iter().all(is_token));
        let lower: Vec<_> = forms.map(|form| Zeroizing::new(form.to_ascii_lowercase())).collect();
        let mut this = self;
        this.names = Some(Box::new(Self::new(lower.iter().map(|form| form.as_slice()))));
        this
    }

    /// Whether an occurrence is in the name of a header.
    pub fn is_in_name(&self, name: &str) -> bool {
        self.names.as_ref().is_some_and(|names| names.is_in(name.as_bytes()))
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Whether an occurrence is in these bytes.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        let mut at = ROOT;
        bytes.iter().any(|byte| {
            at = self.next(at, *byte);
            self.node(at).ends > 0
        })
    }

    /// Replaces occurrences in bytes that are complete. `None` if there are none.
    pub fn scrubbed(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut result: Option<Vec<u8>> = None;
        let mut at = ROOT;
        for (index, byte) in bytes.iter().enumerate() {
            at = self.next(at, *byte);
            let ends = self.node(at).ends as usize;
            if ends > 0 {
                result.get_or_insert_with(|| bytes.to_vec())[index + 1 - ends..=index].fill(b'*');
            }
        }
        result
    }

    fn insert(&mut self, form: &[u8]) {
        let mut at = ROOT;
        for &byte in form {
            at = match self.child(at, byte) {
                Some(child) => child,
                None => self.add(at, byte),
            };
        }
        let depth = self.node(at).depth;
        self.nodes[at as usize].ends = depth;
    }

    fn add(&mut self, parent: u32, byte: u8) -> u32 {
        let index = u32::try_from(self.nodes.len()).expect("a session's values have a few hundred kilobytes of forms");
        let mut node = Node::new(byte, self.node(parent).depth + 1);
        if parent == ROOT {
            self.first[usize::from(byte)] = index;
        }
        let parent = &mut self.nodes[parent as usize];
        node.sibling = std::mem::replace(&mut parent.child, index);
        self.nodes.push(node);
        index
    }

    /// Level by level, so that what a node refers to is known before.
    fn connect(&mut self) {
        let mut level = self.children(ROOT);
        while !level.is_empty() {
            let mut next = Vec::new();
            for &index in &level {
                let fall = self.node(index).fall;
                let fall_ends = self.node(fall).ends;
                let children = self.children(index);
                let node = &mut self.nodes[index as usize];
                node.ends = node.ends.max(fall_ends);
                for &child in &children {
                    let byte = self.node(child).byte;
                    self.nodes[child as usize].fall = self.next(fall, byte);
                }
                next.extend(children);
            }
            level = next;
        }
    }

    fn next(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            match self.child(at, byte) {
                Some(child) => return child,
                None if at == ROOT => return ROOT,
                None => at = self.node(at).fall,
            }
        }
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        if at == ROOT {
            return Some(self.first[usize::from(byte)]).filter(|child| *child != NONE);
        }
        let mut child = self.node(at).child;
        while child != NONE {
            let node = self.node(child);
            if node.byte == byte {
                return Some(child);
            }
            child = node.sibling;
        }
        None
    }

    fn children(&self, at: u32) -> Vec<u32> {
        let mut children = Vec::new();
        let mut child = self.node(at).child;
        while child != NONE {
            children.push(child);
            child = self.node(child).sibling;
        }
        children
    }

    fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }
}

impl Node {
    fn new(byte: u8, depth: u32) -> Self {
        Self { byte, child: NONE, sibling: NONE, fall: ROOT, depth, ends: 0 }
    }
}

impl Drop for Patterns {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.byte.zeroize();
        }
        self.first.zeroize();
    }
}

/// One stream.
pub struct Scrubber {
    patterns: Arc<Patterns>,
    at: u32,
    held: Zeroizing<Vec<u8>>,
}

impl Scrubber {
    pub fn new(patterns: Arc<Patterns>) -> Self {
        Self { patterns, at: ROOT, held: Zeroizing::default() }
    }

    /// Takes a chunk. Returns what is certain by now, which may be nothing.
    pub fn push(&mut self, chunk: Bytes) -> Bytes {
        // Where occurrences end, and their lengths.
        let mut found = Vec::new();
        for (index, byte) in chunk.iter().enumerate() {
            self.at = self.patterns.next(self.at, *byte);
            let ends = self.patterns.node(self.at).ends as usize;
            if ends > 0 {
                found.push((index + 1, ends));
            }
        }
        let window = self.patterns.longest.saturating_sub(1);
        if self.held.is_empty() && found.is_empty() {
            let certain = chunk.len().saturating_sub(window);
            self.held.extend_from_slice(&chunk[certain..]);
            return chunk.slice(..certain);
        }
        let before = self.held.len();
        self.held.extend_from_slice(&chunk);
        for (end, length) in found {
            let end = before + end;
            // What was released is gone.
            self.held[end.saturating_sub(length)..end].fill(b'*');
        }
        self.take(self.held.len().saturating_sub(window))
    }

    /// The end of the stream: what was held back belongs to no occurrence.
    pub fn finish(&mut self) -> Bytes {
        self.at = ROOT;
        self.take(self.held.len())
    }

    /// How many bytes are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Gives out what is held back. What follows is still understood as its continuation.
    pub fn release(&mut self) -> Bytes {
        self.take(self.held.len())
    }

    fn take(&mut self, count: usize) -> Bytes {
        let taken = Bytes::copy_from_slice(&self.held[..count]);
        self.held.drain(..count);
        taken
    }
}
