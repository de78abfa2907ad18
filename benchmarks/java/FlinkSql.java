import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.concurrent.TimeUnit;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Statements of Flink SQL from standard input, one a line, in a cluster of this process. Arguments are keys and values
 * of Flink's configuration. After each statement of a job a line: the job's milliseconds from its start to its end, and
 * those of this process' CPU from the statement's submission on.
 */
public final class FlinkSql {
    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        for (int at = 0; at < arguments.length; at += 2) {
            configuration.setString(arguments[at], arguments[at + 1]);
        }
        TableEnvironment flink = TableEnvironment.create(
                EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration).build());
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            long cpu = system.getProcessCpuTime();
            TableResult result = flink.executeSql(line);
            if (result.getJobClient().isPresent()) {
                long ran = result.getJobClient().get().getJobExecutionResult().get().getNetRuntime();
                cpu = system.getProcessCpuTime() - cpu;
                System.out.println(ran + " " + TimeUnit.NANOSECONDS.toMillis(cpu));
            } else {
                System.out.println("0 0");
            }
        }
    }
}
