//! Runs a simulated cluster for kubectl or any other client: `cargo run --example simulated_cluster [STEPS_A_SECOND]`.

use std::{error::Error, fs, io::stdin};

use deltabus::{Simulator, SimulatorOptions, Sizes, Workload};

fn main() -> Result<(), Box<dyn Error>> {
    let rate = std::env::args().nth(1).map_or(Ok(2.0), |rate| rate.parse())?;
    let simulator = Simulator::start(SimulatorOptions::default())?;
    let mut workload = Workload::new(1);
    workload.populate(simulator.store(), Sizes::default())?;
    let living = workload.run(simulator.store().clone(), rate)?;
    let path = std::env::temp_dir().join("simulated-cluster.kubeconfig");
    fs::write(&path, simulator.kubeconfig())?;
    println!("kubectl --kubeconfig {} get pods -A", path.display());
    println!("press enter to stop");
    stdin().read_line(&mut String::new())?;
    drop(living);
    println!("{} requests", simulator.requests().len());
    Ok(())
}
