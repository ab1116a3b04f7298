# The same kernels on the CPU: checked, and their memory requests counted. Small sizes run whole with
# all checks; of large grids a few blocks stand for all. A fault, an unsupported kernel or a machine
# without a C++ compiler is a row of the table.
rule emulate_kernel:
    input:
        source="kernels/{kernel}.cu",
        manifest="kernels/{kernel}.yaml",
        headers=HEADERS,
        runtime=sorted(
            str(path) for path in (WORKFLOW / "emulator").glob("*/*") if path.is_file()
        ),
        # Machine code is counted for one architecture: reading it takes longer than counting.
        cubin=f"results/build/{SETTINGS.architectures[0]}/{{kernel}}/{{params}}.cubin",
    output:
        counters="results/emulated/{kernel}/{params}.parquet",
    log:
        "results/logs/emulate/{kernel}/{params}.log",
    threads: 1
    resources:
        host=1,
    params:
        sizes=" ".join(f"--size {m} {n} {k}" for m, n, k in SETTINGS.emulator.sizes),
        most_fma=SETTINGS.emulator.most_fma,
        architecture=SETTINGS.architectures[0],
    message:
        "Emulate {wildcards.kernel} {wildcards.params}"
    shell:
        "ladder emulate {wildcards.kernel} --params {wildcards.params:q}"
        " {params.sizes} --most-fma {params.most_fma} --cache results/emulated/cache"
        " --cubin {params.architecture}={input.cubin:q}"
        " --out {output.counters} > {log} 2>&1"


rule emulate:
    input:
        emulated_tables(),
