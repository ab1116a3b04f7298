rule plan_points:
    input:
        tuned=[str(TUNED)] if TUNED.exists() else [],
    output:
        plan="results/{device}/plan.parquet",
    log:
        "results/logs/plan/{device}.log",
    params:
        config=CONFIG_JSON,
        tuned=lambda wildcards, input: f"--tuned {input.tuned}" if input.tuned else "",
    message:
        "Plan the points of {wildcards.device}"
    shell:
        "ladder plan --config-json {params.config:q} {params.tuned} --out {output.plan} > {log} 2>&1"


# One job for all, since a process takes as long to start as a kernel to compile. What is there as it
# would be made now is kept, hence `update`. A compiler's refusal is a row of the record, with an empty
# CUBIN: one bad candidate must not end a sweep.
rule compile_kernels:
    input:
        kernels=kernel_files({build.kernel for build in BUILDS}),
        headers=HEADERS,
    output:
        update(build_files("parquet", ARCHITECTURES)),
        update(build_files("cubin", ARCHITECTURES)),
    log:
        "results/logs/compile.log",
    threads: 16
    resources:
        host=1,
    params:
        config=CONFIG_JSON,
        tuned=str(TUNED),
        tuned_for=TUNED_FOR,
        targets=[f"--architecture {name}" for name in ARCHITECTURES],
    message:
        f"Compile what is new of {len(BUILDS)} builds"
    shell:
        "ladder compile --config-json {params.config:q} --tuned {params.tuned}"
        " --tuned-for {params.tuned_for} {params.targets} --workers {threads}"
        " --builds results/build > {log} 2>&1"
