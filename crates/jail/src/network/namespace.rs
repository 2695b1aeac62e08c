//! Creates a network namespace in parallel: this takes the kernel as long as all mounts together.
//!
//! A helper process that shares our memory and descriptors enters a new network namespace, brings its loopback up,
//! opens it and exits. Once the root is ready, we join it. This costs a little on one CPU and saves a lot on two. For a
//! proxied sandbox the helper also adds routes and rules, and opens the gates.

use std::ffi::{CStr, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::net::netlink;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::bounds::{self, BOUNDS, PROXIED};
use super::gates::{self, Family, Gates, Probes};
use super::netlink::{Messages, ROUTING};
use super::rules::Wanted;
use super::{routes, rules};
use crate::plan::NetworkPlan;
use crate::rule::Rule;
use crate::spawn::Step;
use crate::sys::{checked, join_network, loopback_up, unshare_network};

/// Enough for a few system calls, also in a build without optimizations.
const STACK_LEN: usize = 32 * 1024;

/// The counters of the caller's namespace, in the host's /proc.
const COUNTERS: [&CStr; 2] = [c"self/net/snmp", c"self/net/snmp6"];

/// A network namespace being created.
pub(crate) struct Network {
    helper: Pid,
    done: OwnedFd,
    work: Box<Work>,
    /// The helper's stack, while it lives.
    _stack: Vec<u128>,
}

/// What the parent gets of a namespace that the caller has joined.
pub(crate) struct Joined {
    /// Those of a proxied sandbox.
    pub(crate) gates: Option<Gates>,
    /// The kernel's counters of a namespace without a way out. Where a table doesn't exist, its file is left out.
    pub(crate) counters: Vec<OwnedFd>,
}

/// A step of the helper that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

/// The helper's input. Everything is looked up and written beforehand: the helper must not allocate.
struct Work {
    /// The host's /proc, which is about to be covered.
    proc: OwnedFd,
    tell: OwnedFd,
    is_bounded: bool,
    proxied: Option<Proxied>,
}

/// Messages for a host with IPv6, and for one without.
struct Proxied {
    routes: [Messages; 2],
    rules: [Messages; 2],
}

impl Proxied {
    fn new(wanted: Wanted) -> Self {
        let both = [false, true];
        Self { routes: both.map(routes::everything_is_local), rules: both.map(|has_six| rules::batch(wanted, has_six)) }
    }
}

impl Network {
    /// `None` if the sandbox shares the host's network.
    pub(crate) fn start(plan: NetworkPlan) -> Result<Option<Self>, Errno> {
        let wanted = match plan {
            NetworkPlan::Host => return Ok(None),
            NetworkPlan::None => None,
            NetworkPlan::Proxied => {
                Some(Wanted { is_redirecting: Rule::NetworkRedirect.is_on(), is_dropping: Rule::NetworkDrop.is_on() })
            }
        };
        if !Rule::NetworkNamespace.is_on() {
            return Ok(None);
        }
        Self::start_with(wanted).map(Some)
    }

    /// Proxied if there are rules to install.
    pub(super) fn start_with(wanted: Option<Wanted>) -> Result<Self, Errno> {
        let (done, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let proc = open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let proxied = wanted.map(Proxied::new);
        let work = Box::new(Work { proc, tell, is_bounded: Rule::NetworkBounds.is_on(), proxied });
        let mut stack = vec![0u128; STACK_LEN / size_of::<u128>()];
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: the stack is aligned, writable, and outlives the helper, as does its work: dropping this ends the helper first. The helper
        // makes raw system calls only: it allocates nothing, can't panic, and touches no variable of ours, errno included.
        let pid = unsafe {
            libc::clone(
                helper,
                stack.as_mut_ptr_range().end.cast::<c_void>(),
                flags,
                (&raw const *work).cast_mut().cast::<c_void>(),
            )
        };
        let helper = Pid::from_raw(checked(pid.into())? as i32).ok_or(Errno::SRCH)?;
        Ok(Self { helper, done, work, _stack: stack })
    }

    /// Waits until it is ready and moves the caller there.
    pub(crate) fn join(self) -> Result<Joined, Failure> {
        let failed = |errno| Failure { step: Step::Network, errno };
        let mut answer = [0u8; Answer::LEN];
        if rustix::io::read(&self.done, &mut answer).map_err(failed)? != answer.len() {
            return Err(failed(Errno::PIPE));
        }
        let made = Answer::from_bytes(&answer).result()?;
        join_network(&made.namespace).map_err(failed)?;
        let gates = made.gates().map_err(|errno| Failure { step: Step::Gates, errno })?;
        // Here, because nothing has used it yet and the caller can't be gone: a program may end before its supervisor looks.
        let open = |name: &CStr| openat(&self.work.proc, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let counters =
            if gates.is_some() { Vec::new() } else { COUNTERS.iter().filter_map(|name| open(name)).collect() };
        Ok(Joined { gates, counters })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Our own child, which is done or no longer needed: neither call can fail usefully.
        let _ = kill_process(self.helper, Signal::KILL);
        let _ = waitpid(Some(self.helper), WaitOptions::empty()); // As above.
    }
}

extern "C" fn helper(work: *mut c_void) -> libc::c_int {
    // SAFETY: `start_with` passed a live Work, which outlives us.
    let work = unsafe { &*work.cast::<Work>() };
    let answer = Answer::new(make(work));
    // If this fails, the other side isn't waiting: dropping its end kills us.
    let _ = rustix::io::write(&work.tell, &answer.to_bytes());
    0
}

/// What the helper makes.
struct Made {
    namespace: OwnedFd,
    four: Option<(Family, OwnedFd)>,
    six: Option<Family>,
}

impl Made {
    /// Runs in PID 1, which may allocate and has joined the namespace.
    fn gates(self) -> Result<Option<Gates>, Errno> {
        let Some((four, proxy)) = self.four else { return Ok(None) };
        let mut gates = Gates {
            tcp: vec![four.tcp],
            proxy,
            dns_udp: vec![four.dns_udp],
            dns_tcp: vec![four.dns_tcp],
            probes: Probes::open()?,
        };
        if let Some(six) = self.six {
            gates.tcp.push(six.tcp);
            gates.dns_udp.push(six.dns_udp);
            gates.dns_tcp.push(six.dns_tcp);
        }
        Ok(Some(gates))
    }
}

/// Runs in the helper. Allocates nothing.
fn make(work: &Work) -> Result<Made, Failure> {
    let at = |step: Step| move |errno: Errno| Failure { step, errno };
    unshare_network().and_then(|()| loopback_up()).map_err(at(Step::Network))?;
    if work.is_bounded {
        bounds::set(&work.proc, BOUNDS).map_err(at(Step::Network))?;
    }
    let (mut four, mut six) = (None, None);
    if let Some(proxied) = &work.proxied {
        bounds::set(&work.proc, PROXIED).map_err(at(Step::Network))?;
        six = Family::six().map_err(at(Step::Gates))?;
        four = Some((Family::four().map_err(at(Step::Gates))?, gates::proxy().map_err(at(Step::Gates))?));
        // The rules come before the routes: no packet is ever routed that they have not seen.
        let variant = usize::from(six.is_some());
        proxied.rules[variant].exchange(Some(netlink::NETFILTER)).map_err(at(Step::Redirect))?;
        proxied.routes[variant].exchange(ROUTING).map_err(at(Step::Routes))?;
    }
    let namespace = openat(&work.proc, "self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(at(Step::Network))?;
    Ok(Made { namespace, four, six })
}

/// The helper's answer: the failed step or 0, its error, and the descriptors of the namespace, the proxy and both families, in
/// the order of [`Answer::new`].
struct Answer([i32; Answer::WORDS]);

impl Answer {
    const WORDS: usize = 2 + 1 + 1 + 2 * Family::COUNT;
    const LEN: usize = Self::WORDS * size_of::<i32>();
    const ABSENT: i32 = -1;

    fn new(made: Result<Made, Failure>) -> Self {
        let mut words = [Self::ABSENT; Self::WORDS];
        match made {
            Err(failure) => (words[0], words[1]) = (failure.step as i32, failure.errno.raw_os_error()),
            Ok(Made { namespace, four, six }) => {
                words[0] = 0;
                words[2] = namespace.into_raw_fd();
                if let Some((Family { tcp, dns_udp, dns_tcp }, proxy)) = four {
                    let numbers = [proxy, tcp, dns_udp, dns_tcp].map(IntoRawFd::into_raw_fd);
                    words[3..7].copy_from_slice(&numbers);
                }
                if let Some(Family { tcp, dns_udp, dns_tcp }) = six {
                    let numbers = [tcp, dns_udp, dns_tcp].map(IntoRawFd::into_raw_fd);
                    words[7..10].copy_from_slice(&numbers);
                }
            }
        }
        Self(words)
    }

    /// Takes over the descriptors.
    fn result(self) -> Result<Made, Failure> {
        let [step, errno, namespace, proxy, rest @ ..] = self.0;
        if step != 0 {
            let step = u8::try_from(step).ok().and_then(Step::from_number).unwrap_or(Step::Network);
            return Err(Failure { step, errno: Errno::from_raw_os_error(errno) });
        }
        let (four, six) = rest.split_at(Family::COUNT);
        let namespace = taken(namespace).ok_or(Failure { step: Step::Network, errno: Errno::BADF })?;
        Ok(Made { namespace, four: family(four).zip(taken(proxy)), six: family(six) })
    }

    fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.0).for_each(|(place, word)| *place = word.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let mut words = [0; Self::WORDS];
        words.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(word, bytes)| *word = i32::from_ne_bytes(*bytes));
        Self(words)
    }
}

fn family(numbers: &[RawFd]) -> Option<Family> {
    let [tcp, dns_udp, dns_tcp] = *<&[RawFd; Family::COUNT]>::try_from(numbers).ok()?;
    Some(Family { tcp: taken(tcp)?, dns_udp: taken(dns_udp)?, dns_tcp: taken(dns_tcp)? })
}

/// A descriptor that the helper opened for us.
fn taken(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the helper shares our descriptors, opened this one for us, gave up its ownership, and has ended or is
    // about to.
    (number != Answer::ABSENT).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}
