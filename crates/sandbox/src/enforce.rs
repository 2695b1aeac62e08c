//! Which limits this host can enforce, with which mechanism, and what happens if it can't.

use saggar_domain::{Code, LimitName, Limits, Problem, Spec};
use saggar_jail::cgroup::{Controller, Host, Wanted};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Enforcement {
    pub(crate) cgroup: Wanted,
    /// Enforced by `RLIMIT_NPROC` if no cgroup counts processes. Inside a user namespace the kernel counts only that
    /// namespace's processes.
    pub(crate) processes: Option<u64>,
    /// Default limits that nothing enforces, with the reason.
    pub(crate) unenforced: Vec<String>,
}

impl Enforcement {
    /// Fails if a requested limit can't be enforced.
    pub(crate) fn decide(spec: &Spec, host: &Host) -> Result<Self, Problem> {
        let limits = &spec.limits;
        let missing = |controller: Controller| host.place(controller).err();
        let mut enforcement = Self {
            cgroup: Wanted {
                memory: missing(Controller::Memory).is_none().then_some(limits.memory.value.bytes()),
                pids: missing(Controller::Pids).is_none().then_some(limits.pids.value.get()),
                cpu_millis: missing(Controller::Cpu).is_none().then_some(limits.cpus.value.as_millis()),
                is_freezable: host.freezer().is_ok(),
            },
            processes: missing(Controller::Pids).is_some().then_some(limits.pids.value.get()),
            unenforced: Vec::new(),
        };
        for (controller, name) in [(Controller::Memory, LimitName::Memory), (Controller::Cpu, LimitName::Cpus)] {
            if let Some(why) = missing(controller) {
                enforcement.lack(spec, name, why)?;
            }
        }
        Ok(enforcement)
    }

    fn lack(&mut self, spec: &Spec, name: LimitName, why: &str) -> Result<(), Problem> {
        if spec.strict || is_asked(&spec.limits, name) {
            let who = if is_asked(&spec.limits, name) { "was requested" } else { "is required by strict" };
            return Err(Problem::new(
                Code::UnenforcedLimit,
                format!("limit {} {who} and can't be enforced on this host: {why}", name.as_str()),
                "leave the limit out, run as root, or let systemd delegate the controller: `systemd-run --user --scope -p Delegate=yes saggar run …`; `saggar doctor` shows what this host supports",
            ));
        }
        self.unenforced.push(format!("{}: {why}", name.as_str()));
        Ok(())
    }
}

fn is_asked(limits: &Limits, name: LimitName) -> bool {
    match name {
        LimitName::Timeout => limits.timeout.is_asked,
        LimitName::Memory => limits.memory.is_asked,
        LimitName::Cpus => limits.cpus.is_asked,
        LimitName::Pids => limits.pids.is_asked,
        LimitName::Disk => limits.disk.is_asked,
        LimitName::Files => limits.files.is_asked,
        LimitName::Output => limits.output.is_asked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> Spec {
        Spec::resolve(serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn without_cgroups_a_default_is_reported_and_a_wish_is_refused() {
        let host = Host::default();
        let enforcement = Enforcement::decide(&spec("{}"), &host).unwrap();
        assert_eq!(enforcement.unenforced.len(), 2);
        assert_eq!((enforcement.processes, enforcement.cgroup), (Some(512), Wanted::default()));
        for asked in [r#"{"limits": {"memory": "64M"}}"#, r#"{"limits": {"cpus": "1"}}"#, r#"{"strict": true}"#] {
            assert_eq!(Enforcement::decide(&spec(asked), &host).unwrap_err().code, Code::UnenforcedLimit, "{asked}");
        }
        assert_eq!(Enforcement::decide(&spec(r#"{"limits": {"pids": 9}}"#), &host).unwrap().processes, Some(9));
    }
}
