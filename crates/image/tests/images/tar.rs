//! Writes archives, well-formed or not.

/// An archive in the making.
#[derive(Clone, Default)]
pub struct Tar(Vec<u8>);

/// A header's fields; the rest of it is fixed.
#[derive(Clone)]
pub struct Head<'a> {
    pub name: &'a [u8],
    pub flag: u8,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    /// In place of the content's own.
    pub size: Option<u64>,
    pub modified: u64,
    pub link: &'a [u8],
}

impl Head<'_> {
    pub fn new(name: &str, flag: u8) -> Head<'_> {
        let mode = if flag == b'5' { 0o755 } else { 0o644 };
        Head { name: name.as_bytes(), flag, mode, uid: 0, gid: 0, size: None, modified: 1_700_000_000, link: b"" }
    }
}

impl Tar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn file(self, name: &str, content: &[u8]) -> Self {
        self.add(&Head::new(name, b'0'), content)
    }

    pub fn directory(self, name: &str) -> Self {
        self.add(&Head::new(name, b'5'), b"")
    }

    pub fn link(self, name: &str, target: &str) -> Self {
        self.add(&Head { link: target.as_bytes(), ..Head::new(name, b'2') }, b"")
    }

    pub fn hard_link(self, name: &str, target: &str) -> Self {
        self.add(&Head { link: target.as_bytes(), ..Head::new(name, b'1') }, b"")
    }

    pub fn add(mut self, head: &Head<'_>, content: &[u8]) -> Self {
        self.0.extend_from_slice(&block(head, content.len() as u64));
        self.padded(content)
    }

    /// An extended header for the next entry.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            content.extend_from_slice(format!("{length} {key}=").as_bytes());
            content.extend_from_slice(value);
            content.push(b'\n');
        }
        self.add(&Head::new("PaxHeaders/x", b'x'), &content)
    }

    /// Any bytes, up to a whole block.
    pub fn padded(mut self, content: &[u8]) -> Self {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// With the two blocks that end an archive.
    pub fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }

    /// Without them.
    pub fn cut(self) -> Vec<u8> {
        self.0
    }
}

pub fn block(head: &Head<'_>, size: u64) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &head.name[..head.name.len().min(100)]);
    put(100, format!("{:07o}\0", head.mode).as_bytes());
    put(108, &number(head.uid, 8));
    put(116, &number(head.gid, 8));
    put(124, &number(head.size.unwrap_or(size), 12));
    put(136, &number(head.modified, 12));
    put(156, &[head.flag]);
    put(157, &head.link[..head.link.len().min(100)]);
    put(257, b"ustar\x0000");
    sealed(block)
}

/// Computes the checksum.
pub fn sealed(mut block: [u8; 512]) -> [u8; 512] {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Octal, or base 256 if it doesn't fit.
fn number(number: u64, width: usize) -> Vec<u8> {
    let octal = format!("{number:0width$o}\0", width = width - 1);
    if octal.len() == width {
        return octal.into_bytes();
    }
    let mut bytes = vec![0; width];
    bytes[width - 8..].copy_from_slice(&number.to_be_bytes());
    bytes[0] |= 0x80;
    bytes
}
